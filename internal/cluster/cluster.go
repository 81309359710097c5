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
	"log/slog"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/resource"
)

// Settings are the fields of embed.Server.
type Settings struct {
	DataDir              string
	Listen               string
	KubeconfigFile       string
	Store                string
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
	Started              time.Time
}

// Extensions are extensions in Go.
type Extensions struct {
	Kinds            []*resource.Descriptor
	Admission        []admit.Plugin
	Controllers      []controllers.Controller
	SchedulerPlugins map[string]profile.Factory
}

// Cluster is a started cluster. Stop ends it.
type Cluster struct {
	*lifecycle.Process
	access   access
	settled  <-chan struct{}
	nodeText string
}

// access is the configuration of clients for the API server.
type access struct {
	url        string
	kubeconfig []byte
	admin      *rest.Config
}

// Start starts a cluster and returns when it is ready: the API server answers, and the output files are written. Ending ctx before that
// abandons the start; afterwards it has no effect. When Start returns an error, nothing of the cluster is left.
func Start(ctx context.Context, s Settings) (*Cluster, error) {
	c, _, err := start(ctx, s, steps())
	return c, err
}

// start runs the steps, and also returns their results.
func start(ctx context.Context, s Settings, steps []lifecycle.Step[*assembly]) (*Cluster, *assembly, error) {
	config, err := s.complete()
	if err != nil {
		return nil, nil, err
	}
	var a *assembly
	process, err := lifecycle.Start(ctx, steps, func(p *lifecycle.Process) *assembly {
		a = newAssembly(config, p)
		return a
	})
	if err != nil {
		return nil, a, err
	}
	return &Cluster{Process: process, access: a.access, settled: a.settled, nodeText: a.node.Text}, a, nil
}

// Settled returns a channel that is closed when the controllers have filled their caches and have no work; at once if none run.
func (c *Cluster) Settled() <-chan struct{} { return c.settled }

// Config returns an administrator's client configuration, over TLS.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.access.admin) }

// Kubeconfig returns the administrator's kubeconfig file, as YAML.
func (c *Cluster) Kubeconfig() []byte { return c.access.kubeconfig }

// URL returns https://HOST:PORT.
func (c *Cluster) URL() string { return c.access.url }

// Node describes what runs the pods.
func (c *Cluster) Node() string { return c.nodeText }
