// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/internal/version"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// openStore opens the engine that the settings name, with encryption.
func openStore(ctx context.Context, s *settings, e encrypting) (*store.Store, error) {
	if s.origin != nil {
		return store.New(e.seal(s.origin.engine)), nil
	}
	if s.Engine != nil {
		return store.New(e.seal(s.Engine)), nil
	}
	engine, err := s.engine.Open(ctx, s.engineOptions())
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return store.New(e.seal(engine)), nil
}

// builtInKinds returns the descriptors of the built-in kinds without access to the cluster.
func builtInKinds(s *settings) []*resource.Descriptor {
	return builtin.Kinds(s.serviceCIDRs, false, s.runtimeConfig, builtin.Access{})
}

// makeServer creates the API server from the results of almost all earlier steps.
func makeServer(a *assembly) (*apiserver.Server, error) {
	authentication, err := a.authentication.withOwnKey(a.material.ServiceAccount.Public())
	if err != nil {
		return nil, err
	}
	s, o := a.settings, &a.settings.APIServer
	pages, err := s.pages(a.node)
	if err != nil {
		return nil, err
	}
	if a.peers, err = a.makePeers(); err != nil {
		return nil, err
	}
	if a.versions, err = makeStorageVersions(s); err != nil {
		return nil, err
	}
	a.http2 = &http2server.Server{}
	aggregated := aggregation(&o.Aggregation, a.frontProxy)
	aggregated.Peers = a.peers
	options := apiserver.Options{
		Store:     a.store,
		MoreKinds: func(server *apiserver.Server) []*resource.Descriptor { return a.encryption.know(a.kinds(server)) },
		Roles:     a.authorization.roles,
		Nodes:     a.authorization.nodes,
		PodLabels: podLabels(a.metrics),
		Admission: slices.Concat(a.admission, a.initializing.plugins),
		Material:  a.material,
		NodeCAs:   nodeAuthorities(a.material, a.nodeCAs),
		Version:   version.Get(),
		Features:  apiserver.Features{CBOR: s.cbor},
		Log:       s.Logger.With("part", "apiserver"),
		Ledger:    a.ledger,
		Egress:    a.egress,
		Audit:     a.auditor,
		Explain:   a.observation.explain,

		Authentication: authentication,
		Authenticators: s.Extensions.Authenticators,
		Authorizers:    s.Extensions.authorizers(),
		Authorization:  a.authorization.chain,
		Collectors:     append(a.collectors(), a.authorization.chain.Metrics(), a.observation.registry),
		Checks:         a.encryption.checks(),

		Bootstrapped: a.bootstrapped,
		Shutdown:     apiserver.Shutdown{Finish: s.finishWait(), Streams: s.streamWait()},
		FlowControl:  flowControl(&o.FlowControl, &a.spread, a.http2),
		Aggregation:  aggregated,
		Paths:        a.joinPaths(),
		Pages:        pages,
		Front:        a.front,
		Still:        s.origin != nil && s.origin.base != nil,
	}
	if a.versions != nil {
		options.Features.StorageVersions = a.versions
	}
	server, err := apiserver.New(options)
	if err != nil {
		return nil, fmt.Errorf("make API server: %w", err)
	}
	return server, nil
}

// front returns the handler of connections before that of the API server.
func (a *assembly) front(api http.Handler) http.Handler {
	switch o := a.settings.origin; {
	case o != nil && o.base != nil:
		return o.base.front(a.server, api)
	case a.console != nil:
		return a.console.Before(api)
	}
	return api
}

// authorizers returns the authorizers of extensions.
func (e *Extensions) authorizers() (all []authorize.Authorizer) {
	for _, z := range e.Authorizers {
		all = append(all, authorize.Library(z.Authorize))
	}
	return all
}

// collectors returns the metrics of the store.
func (a *assembly) collectors() []prometheus.Collector {
	all := a.encryption.collectors()
	if c, ok := store.Ability[interface{ Collector() prometheus.Collector }](a.store.Engine()); ok {
		all = append(all, c.Collector())
	}
	return all
}

// kinds returns the kinds that the API server serves from the start. Some of them call the server.
func (a *assembly) kinds(server *apiserver.Server) []*resource.Descriptor {
	s := a.settings
	all := builtin.Kinds(s.serviceCIDRs, or(s.APIServer.Pods.AllowPrivileged, !s.bare), s.runtimeConfig, builtin.Access{
		Verify:     server.Authenticators().Verify,
		Authorize:  authorize.Standard(server.Authorizer()),
		Rules:      a.authorization.chain.Review,
		Roles:      a.authorization.roles,
		Namespaces: func(ctx context.Context, name string) (*corev1.Namespace, error) { return namespace(ctx, server, name) },
		Dial:       a.egress.Cluster(),
	})
	return slices.Concat(all, a.initializing.kinds, a.externalMetrics, a.consoleKinds, metricsKinds(a.metrics), s.Extensions.Kinds)
}

// namespace returns a namespace.
func namespace(ctx context.Context, server *apiserver.Server, name string) (*corev1.Namespace, error) {
	obj, err := server.Backend().Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}

// makeObjects creates the bootstrap objects, and restores those that must not change.
func makeObjects(ctx context.Context, a *assembly) error {
	now := time.Now()
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("find the host's name: %w", err)
	}
	trusts := func() *trusts { return trustsOf(a.material, &a.authentication.settings) }
	known, err := trusts().combine(nil, now)
	if err != nil {
		return err
	}
	b := &bootstrapper{server: a.server, self: a.self(), encryption: a.encryption, log: a.settings.Logger}
	objects := sync.OnceValue(func() []bootstrap.Object {
		return bootstrap.Objects(bootstrap.Options{
			ServiceCIDR: a.settings.serviceCIDRs, Served: served(a.server), Now: now, Authentication: known,
			Accounts: a.settings.accounts(), KubeletClient: !a.settings.bare, MetricsReader: a.metrics != nil,
			Identity: identity(hostname), Hostname: hostname, AdvertiseAddress: a.peerAddress().String(),
		})
	})
	tracked := true
	if a.settings.origin == nil { // a fork has them all: the first cluster has made and repaired them
		if err := a.checkAuthority(ctx); err != nil {
			return err
		}
		if tracked, err = b.makeObjects(ctx, objects()); err != nil {
			return err
		}
		if err := a.checkAuthority(ctx); err != nil { // another server was the first, meanwhile
			return err
		}
	}
	b.keep(objects)
	maps := &configMapPublisher{server: a.server, self: a.self(), trusts: trusts}
	look := maps.keepAll(ctx, tracked, &a.authentication.settings, a.encryption, a.background)
	lease := &identityLease{backend: a.server.Backend(), name: identity(hostname), log: a.settings.Logger}
	lease.restore = func(ctx context.Context) error {
		_, err := b.makeObjects(ctx, slices.DeleteFunc(slices.Clone(objects()), func(o bootstrap.Object) bool { return o.Resource != leases }))
		return err
	}
	if a.versions != nil {
		lease.versions = a.versions
		a.versions.begin(a.server.Backend(), builtInOf(a.server))
		a.versions.keep(ctx) // the Lease exists
	}
	a.background.Go(ctx, func(ctx context.Context) { lease.hold(ctx, look) })
	close(a.bootstrapped)
	return nil
}

// tokens returns the signer of tokens in secrets. It is never an external signer, whose tokens expire.
func tokens(server *apiserver.Server, a *authentication) controllers.TokenSigner {
	accounts := server.Authenticators().Accounts()
	if accounts == nil || a.external != nil {
		return nil
	}
	return accounts.Legacy
}

// serverID returns this server's name among those of its store.
func serverID() (string, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name: %w", err)
	}
	return identity(hostname), nil
}
