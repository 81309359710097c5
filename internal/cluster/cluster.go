// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster assembles a whole cluster in one process: store, API server, controllers, scheduler and nodes.
//
// [Start] runs the steps of one table, in steps.go, and [Cluster.Stop] undoes them in the reverse order. A step is a
// function of its inputs that returns its outputs; the table alone connects the steps. The server's packages meet here and
// in package builtin, and nowhere else: they do not know this package.
package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/authenticator"
	"github.com/mortise-dev/mortise/extension/authorizer"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Settings are the fields of embed.Server.
type Settings struct {
	DataDir              string
	Listen               string
	KubeconfigFile       string
	Store                string
	Engine               store.Engine // the store; nil: the one that Store names
	Node                 node.Mode
	Nodes                int
	CRISocket            string
	Containers           node.Containers // runs pods in containers; nil: pods are simulated
	PodCIDR, ServiceCIDR string
	Controllers          []string
	FeatureGates         map[string]bool
	RuntimeConfig        map[string]string
	APIServer            options.APIServer
	Extensions           Extensions
	Logger               *slog.Logger
	Start                Startup

	origin *origin       // of a fork; nil: none
	local  *localServers // nil: the cluster calls none
}

// Startup is what is known of a start from outside, and who follows it.
type Startup struct {
	Began    time.Time         // zero: now
	Progress func(step string) // is called as each step begins; nil: nothing is

	label string // of the cluster's goroutines
}

// Extensions are extensions in Go.
type Extensions struct {
	Kinds            []*resource.Descriptor
	Admission        []admit.Plugin
	Authenticators   []authenticator.Authenticator
	Authorizers      []authorizer.Authorizer
	Controllers      []controllers.Controller
	SchedulerPlugins map[string]profile.Factory
	EtcdProtocol     func(ctx context.Context, l net.Listener, o EtcdProtocol) error // nil: the store is not served by etcd's protocol
}

// Cluster is a started cluster, or a fork that starts when it is used. Stop ends it.
type Cluster struct {
	settings Settings
	material *serving.Material
	access   access
	nodeText string
	origin   *origin // of a fork; nil: none
	ended    chan struct{}

	bases   bases                    // of its forks
	serving atomic.Pointer[instance] // of a fork: now, for readers without the lock

	connections connections    // of a fork
	accepting   sync.WaitGroup // of a fork: who accepts its connections, and its start in the background
	beginning   sync.Mutex     // guards begun and ending
	begun       bool           // the fork starts in the background, or has
	ending      bool

	mu      sync.Mutex
	now     *instance // nil: the fork is not used yet
	failed  error     // why the fork could not start
	stopped bool
	cause   error // why a part ended by itself
	isEnded bool
}

// instance is the running parts of a cluster.
type instance struct {
	*lifecycle.Process
	settled <-chan struct{}
	server  *apiserver.Server
	http2   *http2server.Server // serves its HTTP/2 connections, unless net/http does
	engine  store.Engine        // nil: the store cannot be forked
	front   http.Handler        // of a fork: the handler of its connections, which others accept
	retries *controllers.RetryCounter
}

// access is the configuration of clients for the API server.
type access struct {
	url        string
	kubeconfig func() []byte // made when it is asked for
	admin      *rest.Config

	endpoint serving.Endpoint
	identity *serving.Pair
}

// Start starts a cluster and returns when it is ready: the API server answers, and the output files are written. Ending ctx before that
// abandons the start; afterwards it has no effect. When Start returns an error, nothing of the cluster is left.
func Start(ctx context.Context, s Settings) (*Cluster, error) {
	if s.Store == "" && s.DataDir == "" || s.Store == "memory" {
		s.local = &localServers{}
	}
	c, _, err := start(ctx, s, steps())
	if err == nil && s.local != nil {
		s.local.material = c.material
	}
	return c, err
}

// start runs the steps, and also returns their results.
func start(ctx context.Context, s Settings, steps []lifecycle.Step[*assembly]) (*Cluster, *assembly, error) {
	s.Start.label = newLabel()
	now, a, err := startSteps(ctx, s, steps)
	if err != nil {
		return nil, a, err
	}
	return &Cluster{settings: s, material: a.material, access: a.access, nodeText: a.node.Text, now: now, ended: make(chan struct{})}, a, nil
}

// startSteps runs the steps, and also returns their results.
func startSteps(ctx context.Context, s Settings, steps []lifecycle.Step[*assembly]) (*instance, *assembly, error) {
	config, err := s.complete()
	if err != nil {
		return nil, nil, err
	}
	if s.Start.Progress != nil {
		steps = lifecycle.Announced(steps, s.Start.Progress)
	}
	var a *assembly
	var process *lifecycle.Process
	labelled(s.Start.label, func() {
		process, err = lifecycle.Start(ctx, steps, func(p *lifecycle.Process) *assembly {
			a = newAssembly(config, p)
			return a
		})
	})
	if err != nil {
		return nil, a, err
	}
	r := &instance{Process: process, settled: a.settled, server: a.server, http2: a.http2, retries: a.observation.retries}
	if a.server != nil && s.origin != nil && s.origin.base == nil {
		r.front = a.front(a.server.Handler())
	}
	if a.store != nil {
		if forker, ok := store.Ability[store.Forker](a.store.Engine()); ok {
			r.engine, _ = forker.(store.Engine)
		}
	}
	return r, a, nil
}

// Stop ends the cluster cleanly, and returns when all of it has ended. More calls return the same.
func (c *Cluster) Stop() error {
	if c.origin == nil {
		err := errors.Join(c.bases.close(), c.now.Stop())
		c.settings.local.close()
		return err
	}
	c.beginning.Lock()
	c.ending = true
	c.beginning.Unlock()
	c.mu.Lock()
	r, before := c.now, c.stopped
	c.stopped, c.now = true, nil
	c.serving.Store(nil)
	c.mu.Unlock()
	if before {
		<-c.ended
		return c.cause
	}
	err := c.bases.close()
	if l := c.origin.listener; l != nil {
		err = errors.Join(err, l.Close())
	}
	if r != nil {
		err = errors.Join(err, r.Stop())
	}
	c.connections.close()
	c.accepting.Wait()
	c.settings.local.close()
	if b := c.origin.base; b != nil {
		b.forks.Delete(c.settings.Listen)
		err = errors.Join(err, b.leave())
	} else {
		err = errors.Join(err, c.origin.engine.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(errors.Join(err, c.failed))
	return c.cause
}

// end records that a fork has ended. The caller holds the lock.
func (c *Cluster) end(cause error) {
	if !c.isEnded {
		c.cause, c.isEnded = cause, true
		close(c.ended)
	}
}

// Wait blocks until the cluster ends: it returns nil after Stop, and the reason when a part ended by itself.
func (c *Cluster) Wait() error {
	if c.origin == nil {
		return c.now.Wait()
	}
	<-c.ended
	return c.cause
}

// Settled returns a channel that is closed when the controllers have filled their caches and have no work; at once if none run. It starts a
// fork that is not used yet; the channel of one that cannot start is closed.
func (c *Cluster) Settled() <-chan struct{} {
	if c.origin == nil {
		return c.now.settled
	}
	r, err := c.use()
	if err != nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return r.settled
}

// Revision returns the newest revision of the store; 0 if the store is not in memory.
func (c *Cluster) Revision() int64 {
	if e := c.stored(); e != nil {
		return e.Revision()
	}
	return 0
}

// RevisionAt returns the newest revision of the store at a time. Only a store in memory knows.
func (c *Cluster) RevisionAt(at time.Time) (int64, error) {
	history, ok := c.stored().(store.History)
	if !ok {
		return 0, errors.New("only a store in memory knows when it has committed")
	}
	return history.RevisionAt(at)
}

// Config returns an administrator's client configuration: over TLS, or in-process if the cluster has no port.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.access.admin) }

// Kubeconfig returns the administrator's kubeconfig file, as YAML; nil if the cluster has no port.
func (c *Cluster) Kubeconfig() []byte {
	if c.access.kubeconfig == nil {
		return nil
	}
	return c.access.kubeconfig()
}

// URL returns https://HOST:PORT; nothing if the cluster has no port.
func (c *Cluster) URL() string { return c.access.url }

// Node describes what runs the pods.
func (c *Cluster) Node() string { return c.nodeText }
