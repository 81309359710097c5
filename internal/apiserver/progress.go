// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"sync/atomic"
)

// progress is how far a server's start and shutdown are, which its health checks show.
type progress struct {
	ready        chan struct{}   // closed when the stored objects have been loaded
	bootstrapped <-chan struct{} // closed when the objects that every cluster has exist; nil: the server makes none
	leaving      atomic.Bool     // the shutdown has begun
	leave        func()          // called when the shutdown begins, for handlers that wait; nil: none do
	ended        func() bool     // reports whether the server has ended
}

// beginShutdown begins the shutdown.
func (p *progress) beginShutdown() {
	p.leaving.Store(true)
	if p.leave != nil {
		p.leave()
	}
}

// loaded fails until the stored objects have been loaded.
func (p *progress) loaded(context.Context) error {
	select {
	case <-p.ready:
		return nil
	default:
		return errors.New("the server is starting")
	}
}

// allBootstrapped fails until the objects that every cluster has exist.
func (p *progress) allBootstrapped(ctx context.Context) error {
	if p.bootstrapped == nil {
		return p.loaded(ctx)
	}
	select {
	case <-p.bootstrapped:
		return nil
	default:
		return errors.New("not finished") // upstream's words
	}
}

// staying fails once the shutdown has begun.
func (p *progress) staying(context.Context) error {
	if p.leaving.Load() || p.ended() {
		return errors.New("process is shutting down") // upstream's words
	}
	return nil
}
