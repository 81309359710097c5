// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podworkers makes the pods of the node real: each pod has a worker, which looks at everything, decides (package decide) and acts.
//
//	podworkers.go  the Manager
//	dependencies.go  what it needs of other rooms
//	pods.go        the table of pods, and what other rooms ask about them
//	worker.go      the rounds of one worker
//	steps.go       what it tries again when it fails
//	hooks.go       THE ordered table of what is done for a pod before it has a sandbox
//	start.go       carrying a decision out: sandboxes and containers
//	probes.go      probing what runs
//	terminate.go   the end of a pod, and what is left of it
//	messages.go    the last words of containers
//	status.go      writing what came of it to the API server
//	inherit.go     the addresses of pods in the node's network
//
// All that is known of pods to others is behind the table's lock; the rest belongs to the worker's goroutine.
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

// Config is what a Manager is made from. All of it is required.
type Config struct {
	Client    kubernetes.Interface
	Node      *corev1.ObjectReference // for events
	Runtime   *cri.Client
	RunConfig runconfig.Node // what the runtime is asked for
	Kubelet   *configv1beta1.KubeletConfiguration
	Resources allocatable.Node
	Addresses Addresses
	Backoff   *backoff.Table // of containers that keep ending
	Clock     clock.WithTicker
	Logger    *slog.Logger
}

// Manager has the workers of the node's pods.
type Manager struct {
	Config
	Dependencies
	*podTable
	probes *probe.Manager
	hooks  []hook
}

// New makes the manager. Pods may come after Start; their workers begin with Run.
func New(c Config) *Manager {
	m := &Manager{Config: c, podTable: newPodTable(c.Clock, c.Logger)}
	m.probes = &probe.Manager{Prober: &probe.Prober{Exec: c.Runtime.ExecSync}, Clock: c.Clock, Changed: m.Wake, Report: m.reportProbe}
	return m
}

// Start takes what the workers need of other rooms.
func (m *Manager) Start(d Dependencies) {
	m.Dependencies = d
	m.hooks = hooks(m)
}

// Run runs the workers until ctx is done, and returns when all have ended, and all probes.
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
