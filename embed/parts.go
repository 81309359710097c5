// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/why"
	"github.com/mortise-dev/mortise/store"
)

// parts are what a started cluster consists of, in the order in which they come up. They go down in the other order.
type parts struct {
	context context.Context // of everything that runs; ended by cancel
	cancel  context.CancelFunc

	listener   net.Listener
	forPods    podAccess // beside a listener on loopback
	url        string
	dir        *dataDir
	pki        *serving.Material
	store      *store.Store
	api        *apiserver.Server
	admin      *rest.Config
	kubeconfig []byte
	settled    chan struct{}

	ledger   *extension.Ledger // makes every call out to an extension
	egress   *egress.Selector  // by which way connections leave; nil: the ordinary one
	authn    authentication
	audit    *audit.Auditor // nil: nothing is audited
	auditing group          // what the auditor does meanwhile: it outlasts the API server

	frontProxy *frontProxyClient // nil: the cluster's own

	authorization authorization
	encryption    encrypting

	admission    admit.Chain
	initializing initializing

	controllerMetrics *controllers.Metrics

	scheduling       *config.Configuration
	schedulerPlugins profile.Registry // the built-in ones, then those of others
	decisions        *why.Keeper      // of the scheduler; nil: nobody keeps them
	schedulerMetrics *metrics.Metrics

	bootstrapped chan struct{} // closed when the objects that every cluster has are there

	nodeText  string // what the ready line says of the node
	criSocket string

	nodeCAs []byte // PEM, of nodes' serving certificates beside the cluster's own; nil: these are not verified

	place place  // of what runs pods
	alone string // the name of a simulated node that is of a cluster elsewhere

	proxyMetrics *proxy.Metrics
	podMTU       int      // of pods' packets; 0: as the machine has it
	masqueraded  bool     // what pods send out of the cluster, by us
	clusterDNS   []string // whom pods ask for names; none: the machine's

	nodeGroups []simulated.Group // none: nodes that are all alike
	phases     simulated.Phases

	clients sync.WaitGroup // controllers, scheduler, node: what talks to the API
	server  group          // the API server itself

	mu    sync.Mutex
	cause error // why a part ended by itself
}

// group is goroutines under a context of their own.
type group struct {
	sync.WaitGroup
	context context.Context
	cancel  context.CancelFunc
}

// client runs a part that talks to the API until the cluster stops. A part that ends by itself ends the cluster.
func (p *parts) client(name string, run func(ctx context.Context) error) {
	p.clients.Go(func() { p.watch(p.context, name, run) })
}

// watch runs a part and books why it ended, if nobody had asked it to.
func (p *parts) watch(ctx context.Context, name string, run func(ctx context.Context) error) {
	err := run(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = errors.New("ended")
	}
	p.mu.Lock()
	if p.cause == nil {
		p.cause = fmt.Errorf("run %s: %w", name, err)
	}
	p.mu.Unlock()
	p.cancel()
}

// failure is why the cluster ended by itself; nil if it did not.
func (p *parts) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cause
}

// end stops what runs, the last started first, and closes what is open.
func (p *parts) end() error {
	if p.api != nil {
		p.api.Leave()
	}
	if p.cancel != nil {
		p.cancel()
	}
	p.clients.Wait()
	if p.server.cancel != nil {
		p.server.cancel()
		p.server.Wait()
	}
	if p.auditing.cancel != nil {
		p.auditing.cancel()
		p.auditing.Wait()
	}
	var errs []error
	if p.listener != nil {
		if err := p.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, p.forPods.close())
	if p.authn.external != nil {
		_ = p.authn.external.Close() // the server may have done so
	}
	if p.store != nil {
		if err := p.store.Close(); err != nil && !errors.Is(err, store.ErrClosed) {
			errs = append(errs, fmt.Errorf("close store: %w", err))
		}
	}
	p.encryption.end()
	if p.dir != nil {
		errs = append(errs, p.dir.close())
	}
	return errors.Join(errs...)
}
