// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/store"
)

// storeWait is how long the store may take to say that it can be written.
const storeWait = 2 * time.Second

// checks are the parts of the server's health, in the order in which they are told. Those that other parts of the process
// bring (Options.Checks) come before the last, which fails as soon as the server is told to end.
//
// The names that begin with poststarthook/ are those of kube-apiserver's for work that is done here too; scripts wait for some.
func (s *Server) checks() []health.Check {
	ok := func(context.Context) error { return nil }
	alive := []health.Root{health.Healthz, health.Livez}
	ready := []health.Root{health.Readyz}
	cs := []health.Check{
		{Name: "ping", Run: ok},
		{Name: "log", Run: ok},
		{Name: "loopback-serving-certificate", Run: ok, Only: alive}, // in-process clients need none
		{Name: "etcd", Run: s.writable},
		{Name: "etcd-readiness", Run: s.writable, Only: ready},
		{Name: "informer-sync", Run: s.loaded, Only: ready},
		{Name: "poststarthook/start-apiserver-admission-initializer", Run: s.loaded},
		{Name: "poststarthook/generic-apiserver-start-informers", Run: s.loaded},
		{Name: "poststarthook/start-apiextensions-informers", Run: s.loaded},
		{Name: "poststarthook/start-apiextensions-controllers", Run: s.loaded},
		{Name: "poststarthook/crd-informer-synced", Run: s.loaded},
		{Name: "poststarthook/storage-readiness", Run: s.loaded},
	}
	cs = append(cs, s.opts.Checks...)
	return append(cs, health.Check{Name: "shutdown", Run: s.staying, Only: ready})
}

// writable asks the store to delete what is not there: a commit that changes nothing, and that a store which cannot be
// written refuses.
func (s *Server) writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	_, err := s.opts.Store.Delete(ctx, "/registry/health", 1)
	var conflict *store.ConflictError
	if err == nil || errors.As(err, &conflict) {
		return nil
	}
	return fmt.Errorf("commit to store: %w", err)
}

// loaded fails until what the store holds has been put to work.
func (s *Server) loaded(context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
		return errors.New("the server is starting")
	}
}

// staying fails from the moment on at which the server was told to end.
func (s *Server) staying(context.Context) error {
	if s.leaving.Load() || s.lifetime.Context.Err() != nil {
		return errors.New("process is shutting down") // upstream's words
	}
	return nil
}
