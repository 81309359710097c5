// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package containermanager is the seam between a pod's life and the managers of the node's resources beyond plain cgroup limits: device
// plug-ins, resource claims (DRA), exclusive CPUs and memory. The managers are rows of one table, [Row]; the [Manager] calls them.
//
//	containermanager.go  the table, and the calls of a pod's life
//	topology.go          NUMA hints, and the policy that merges them
//	options.go           what a container gets from the runtime
//	errors.go            why a pod is refused, and why it is held
//
// The calls for one pod, in this order:
//
//	Admit         once, in the pod's admission: each container's resources are allocated, init containers first
//	Prepare       each round before the pod's sandbox and containers start; cheap when nothing is left to do
//	Options       before each creation of a container
//	Status        with each status of the pod
//	Release       when no container of the pod runs any more; again and again until it succeeds, also for pods of a former process
//
// A manager keeps what it has allocated in its own file: after a restart of the node, containers that run keep what they have, and
// pods that run are not admitted again.
//
// A node whose table is empty has no cost: each call returns at once.
package containermanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Operation is why resources are allocated.
type Operation string

// Operations, as kubelet names them.
const (
	Add    Operation = "add"    // a pod is admitted
	Resize Operation = "resize" // an admitted pod changes its resources
)

// Request asks a manager for the resources of one container, or of a pod.
type Request struct {
	Operation Operation
	Pod       *corev1.Pod
	Container *corev1.Container // nil: the pod as a whole
	Affinity  TopologyHint      // the policy's decision; its zero value: there is none
}

// Allocator allocates what a container requests. Calls for different pods may come concurrently, unless a topology policy is set.
type Allocator interface {
	// Allocate allocates. It is idempotent: what the container has already, it keeps. It returns a *Rejection, a *Hold, or any other error,
	// which rejects the pod as kubelet does (UnexpectedAdmissionError).
	Allocate(ctx context.Context, r Request) error
}

// Preparer does what must be done once for a pod before it starts. A pod for which it fails is retried, with an event.
type Preparer interface {
	Prepare(ctx context.Context, pod *corev1.Pod) error
}

// OptionsProvider adds what the runtime shall give to a container. It may return a *Hold.
type OptionsProvider interface {
	AddOptions(ctx context.Context, pod *corev1.Pod, container *corev1.Container, to *Options) error
}

// Releaser frees everything that a pod has. The pod may be unknown to it. After an error it is called again.
type Releaser interface {
	Release(ctx context.Context, pod types.UID) error
}

// StatusProvider reports the health of what a container has, for status.containerStatuses[].allocatedResourcesStatus.
type StatusProvider interface {
	ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus
}

// NodeResources are the extended resources that a manager adds to the Node.
type NodeResources interface {
	// Capacity returns the capacity and the allocatable amounts. A resource with zero stays in the Node as zero.
	Capacity() (capacity, allocatable corev1.ResourceList)
	// Allocated returns how much of each resource pods have, so that a pod that has its devices is admitted while the Node shows fewer.
	Allocated() map[corev1.ResourceName]int64
}

// Describer says what containers have, for the pod resources API.
type Describer interface {
	// Describe adds what a container has.
	Describe(pod *corev1.Pod, container *corev1.Container, to *podresources.ContainerResources)
	// DescribeNode adds what the node can give.
	DescribeNode(to *podresources.AllocatableResourcesResponse)
}

// PodDescriber is a Describer of managers that allocate for a pod as a whole.
type PodDescriber interface {
	// DescribePod adds what a pod has as a whole.
	DescribePod(pod *corev1.Pod, to *podresources.PodResources)
}

// Row is one manager in the table. All fields but Name may be nil.
type Row struct {
	Name      string
	Hints     HintProvider
	Allocator Allocator
	Preparer  Preparer
	Options   OptionsProvider
	Status    StatusProvider
	Resources NodeResources
	Releaser  Releaser
	Describer Describer
	Run       func(ctx context.Context) error // runs beside the pods until ctx ends
}

// Manager calls the managers of the table.
type Manager struct {
	rows     []Row
	topology Topology

	aligning sync.Mutex // held from the first hint to the last allocation of a pod
}

// New makes the manager of the rows, in kubelet's order: devices, CPUs, memory, claims. A nil topology means the policy "none".
func New(topology Topology, rows ...Row) *Manager { return &Manager{rows: rows, topology: topology} }

// Rows returns the table. The caller must not change it.
func (m *Manager) Rows() []Row { return m.rows }

// Admit allocates the resources of all containers of a pod. It returns a *Rejection, or a *Hold if the pod has to wait.
func (m *Manager) Admit(ctx context.Context, pod *corev1.Pod) error { return m.allocate(ctx, pod, Add) }

// Resize is like Admit for an admitted pod whose resources change.
func (m *Manager) Resize(ctx context.Context, pod *corev1.Pod) error {
	return m.allocate(ctx, pod, Resize)
}

func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, why Operation) error {
	if len(m.rows) == 0 {
		return nil
	}
	if m.topology != nil {
		m.aligning.Lock()
		defer m.aligning.Unlock()
	}
	err := m.align(ctx, pod, why)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return admissionError(err)
}

// Prepare has all managers prepare a pod. The first error ends it.
func (m *Manager) Prepare(ctx context.Context, pod *corev1.Pod) error {
	for _, r := range m.rows {
		if r.Preparer == nil {
			continue
		}
		if err := r.Preparer.Prepare(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// Options returns what the managers give to a container that is about to be created.
func (m *Manager) Options(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (*Options, error) {
	out := &Options{}
	for _, r := range m.rows {
		if r.Options == nil {
			continue
		}
		if err := r.Options.AddOptions(ctx, pod, container, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ResourceStatus returns the health of what a container has; nil: it has nothing of the managers.
func (m *Manager) ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	var out []corev1.ResourceStatus
	for _, r := range m.rows {
		if r.Status != nil {
			out = append(out, r.Status.ResourceStatus(pod, container)...)
		}
	}
	return out
}

// Describe adds what a container has of all managers.
func (m *Manager) Describe(pod *corev1.Pod, container *corev1.Container, to *podresources.ContainerResources) {
	for _, r := range m.rows {
		if r.Describer != nil {
			r.Describer.Describe(pod, container, to)
		}
	}
}

// DescribePod adds what a pod has as a whole of all managers.
func (m *Manager) DescribePod(pod *corev1.Pod, to *podresources.PodResources) {
	for _, r := range m.rows {
		if whole, ok := r.Describer.(PodDescriber); ok {
			whole.DescribePod(pod, to)
		}
	}
}

// DescribeNode adds what the node can give of all managers.
func (m *Manager) DescribeNode(to *podresources.AllocatableResourcesResponse) {
	for _, r := range m.rows {
		if r.Describer != nil {
			r.Describer.DescribeNode(to)
		}
	}
}

// Capacity returns the resources that the managers add to the Node.
func (m *Manager) Capacity() (capacity, allocatable corev1.ResourceList) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for _, r := range m.rows {
		if r.Resources == nil {
			continue
		}
		all, free := r.Resources.Capacity()
		for name, q := range all {
			capacity[name] = q
		}
		for name, q := range free {
			allocatable[name] = q
		}
	}
	return capacity, allocatable
}

// Allocated returns how much of each extended resource pods have.
func (m *Manager) Allocated() map[corev1.ResourceName]int64 {
	var out map[corev1.ResourceName]int64
	for _, r := range m.rows {
		if r.Resources == nil {
			continue
		}
		for name, n := range r.Resources.Allocated() {
			if out == nil {
				out = map[corev1.ResourceName]int64{}
			}
			out[name] += n
		}
	}
	return out
}

// Release has all managers free what a pod has, the last of the table first. If one fails, the others still run.
func (m *Manager) Release(ctx context.Context, pod types.UID) error {
	var failed []error
	for _, r := range slices.Backward(m.rows) {
		if r.Releaser == nil {
			continue
		}
		if err := r.Releaser.Release(ctx, pod); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", r.Name, err))
		}
	}
	return errors.Join(failed...)
}

// Run runs what the managers run beside the pods, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, r := range m.rows {
		if r.Run != nil {
			group.Go(func() error { return r.Run(ctx) })
		}
	}
	return group.Wait()
}
