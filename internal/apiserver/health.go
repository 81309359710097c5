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

// storeWait is the timeout of the check that the store can be written.
const storeWait = 2 * time.Second

// checks returns the server's health checks, in kube-apiserver's order and under its names, for which scripts wait. Its
// post-start hooks are work that this server does before it responds: each check passes once the objects that it names
// exist. Checks of other parts of the process (Options.Checks) come before the last one, which fails as soon as the
// server begins to shut down.
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
		{Name: "informer-sync", Run: s.progress.loaded, Only: ready},
	}
	for _, h := range hooks {
		run := s.progress.loaded
		if h.objects {
			run = s.progress.allBootstrapped
		}
		cs = append(cs, health.Check{Name: h.name, Run: run})
	}
	cs = append(cs, s.feedChecks()...)
	cs = append(cs, s.opts.Checks...)
	return append(cs, health.Check{Name: "shutdown", Run: s.progress.staying, Only: ready})
}

// hooks are kube-apiserver's post-start hooks. Those for objects create the objects that every cluster has.
var hooks = []struct {
	name    string
	objects bool
}{
	{"poststarthook/start-apiserver-admission-initializer", false},
	{"poststarthook/generic-apiserver-start-informers", false},
	{"poststarthook/priority-and-fairness-config-consumer", false},
	{"poststarthook/priority-and-fairness-filter", false},
	{"poststarthook/storage-object-count-tracker-hook", false},
	{"poststarthook/start-apiextensions-informers", false},
	{"poststarthook/start-apiextensions-controllers", false},
	{"poststarthook/crd-informer-synced", false},
	{"poststarthook/start-system-namespaces-controller", true},
	{"poststarthook/peer-endpoint-reconciler-controller", false},
	{"poststarthook/start-cluster-authentication-info-controller", true},
	{"poststarthook/start-kube-apiserver-identity-lease-controller", true},
	{"poststarthook/start-kube-apiserver-identity-lease-garbage-collector", true},
	{"poststarthook/storage-readiness", false},
	{"poststarthook/start-legacy-token-tracking-controller", true},
	{"poststarthook/start-service-ip-repair-controllers", true},
	{"poststarthook/rbac/bootstrap-roles", true},
	{"poststarthook/scheduling/bootstrap-system-priority-classes", true},
	{"poststarthook/priority-and-fairness-config-producer", true},
	{"poststarthook/bootstrap-controller", true},
	{"poststarthook/start-kubernetes-service-cidr-controller", true},
	{"poststarthook/start-kube-aggregator-informers", false},
	{"poststarthook/apiservice-status-local-available-controller", true},
	{"poststarthook/apiservice-status-remote-available-controller", true},
	{"poststarthook/apiservice-registration-controller", true},
	{"poststarthook/apiservice-discovery-controller", false},
	{"poststarthook/kube-apiserver-autoregistration", true},
	{"autoregister-completion", true},
	{"poststarthook/apiservice-openapi-controller", false},
	{"poststarthook/apiservice-openapiv3-controller", false},
}

// writable asks the store to delete a missing key: a commit that changes nothing, and that fails if the store cannot be
// written. A store that another process keeps is asked whether it answers, as kube-apiserver asks etcd.
func (s *Server) writable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeWait)
	defer cancel()
	if p, ok := store.Ability[store.Prober](s.opts.Store.Engine()); ok {
		return p.Probe(ctx)
	}
	_, err := s.opts.Store.Delete(ctx, "/registry/health", 1)
	var conflict *store.ConflictError
	if err == nil || errors.As(err, &conflict) {
		return nil
	}
	return fmt.Errorf("commit to store: %w", err)
}
