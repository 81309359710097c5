// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podworkers runs the pods of the node: each pod has a worker, which looks at the whole state, decides (package decide) and acts.
//
//	podworkers.go  the Manager
//	dependencies.go  the interfaces of the rooms that it uses
//	pods.go        the table of pods, and queries of other rooms
//	worker.go      the rounds of one worker
//	deadline.go    the deadline of a pod
//	metrics.go     kubelet's metrics of starts
//	steps.go       retries of failed steps
//	hooks.go       THE ordered table of the preparations for a sandbox
//	start.go       starts sandboxes and containers
//	probes.go      probes running containers
//	terminate.go   ends a pod and cleans up
//	messages.go    termination messages of containers
//	status.go      writes the pod's status to the API server
//	inherit.go     the addresses of pods in the node's network
//
// The table's lock guards everything that other rooms may read of pods; the rest belongs to the worker's goroutine.
package podworkers

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/probe"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// Config configures a Manager. All fields are required.
type Config struct {
	Client    kubernetes.Interface
	Node      *corev1.ObjectReference // for events
	Runtime   *cri.Client
	RunConfig runconfig.Node // builds the requests to the runtime
	Kubelet   *configv1beta1.KubeletConfiguration
	Resources allocatable.Node
	Addresses Addresses
	Backoff   *backoff.Table // of crashing containers
	Probes    *probe.Metrics // nil: probes are not counted
	Starts    *Metrics       // nil: starts are not timed
	Clock     clock.WithTicker
	Logger    *slog.Logger
}

// Manager owns the workers of the node's pods.
type Manager struct {
	Config
	Dependencies
	*podTable
	probes *probe.Manager
	hooks  []hook
}

// New makes the manager. Pods may be added after Start; their workers run once Run does.
func New(c Config) *Manager {
	m := &Manager{Config: c, podTable: newPodTable(c.Clock, c.Logger)}
	m.probes = &probe.Manager{Prober: &probe.Prober{Exec: c.Runtime.ExecSync}, Clock: c.Clock, Changed: m.Wake, Report: m.reportProbe,
		Metrics: c.Probes}
	return m
}

// Start passes the rooms that the workers use.
func (m *Manager) Start(d Dependencies) {
	m.Dependencies = d
	m.hooks = hooks(m)
}

// Run runs the workers until ctx is done, and returns when all workers and probes have ended.
func (m *Manager) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for {
		for _, w := range m.takeNew() {
			running.Go(func() { w.run(ctx) })
		}
		select {
		case <-ctx.Done():
			running.Wait()
			m.probes.Wait()
			return nil
		case <-m.begun:
		}
	}
}
