// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podworkers makes the pods of the node real: each pod has a worker, which looks at everything, decides (package decide) and acts.
//
//	podworkers.go  the Manager and its neighbours
//	pods.go        the table of pods, and what other rooms ask about them
//	worker.go      the rounds of one worker
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
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cgroups"
	"github.com/mortise-dev/mortise/internal/agent/containerhooks"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/images"
	"github.com/mortise-dev/mortise/internal/agent/objectcache"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podkiller"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/probe"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/static"
	"github.com/mortise-dev/mortise/internal/agent/userns"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Addresses are where others reach the node.
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
}

// NodeStatus is what the node says of itself.
type NodeStatus interface {
	// Resync makes the node look at the runtime, and write what has changed.
	Resync()
	// NetworkReady reports whether pods with a network of their own can be made, and if not, why.
	NetworkReady() (ready bool, why string)
}

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

// Managers are the neighbours of a Manager. Some are made with the Manager, so that it gets them with Start.
type Managers struct {
	Services   corev1listers.ServiceLister
	Events     record.EventRecorder
	Objects    *objectcache.Manager
	Volumes    *volumes.Manager
	Images     *images.Manager
	NodeStatus NodeStatus
	Static     *static.Manager
	Cgroups    *cgroups.Manager
	Users      *userns.Manager
	Lifecycle  *containerhooks.Runner
	Killer     *podkiller.Killer
	Admission  *podadmission.Manager
	Resizes    *podresize.Manager
}

// Manager has the workers of the node's pods.
type Manager struct {
	Config
	Managers
	*podTable
	probes  *probe.Manager
	hooks   []hook
	running sync.WaitGroup  // of workers
	ctx     context.Context // of workers
}

// New makes the manager. Pods may come after Start.
func New(c Config) *Manager {
	m := &Manager{Config: c, podTable: newPodTable(c.Clock, c.Logger)}
	m.probes = &probe.Manager{Prober: &probe.Prober{Exec: c.Runtime.ExecSync}, Clock: c.Clock, Changed: m.Wake, Report: m.reportProbe}
	return m
}

// Start takes the neighbours. Workers run until ctx is done.
func (m *Manager) Start(ctx context.Context, managers Managers) {
	m.ctx, m.Managers = ctx, managers
	m.hooks = hooks(m)
}

// Wait waits until all workers have ended, and then all probes.
func (m *Manager) Wait() {
	m.running.Wait()
	m.probes.Wait()
}
