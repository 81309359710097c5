// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cpumanager gives containers CPUs of their own, as kubelet's CPU manager does, and keeps all other containers on the rest.
//
//	cpumanager.go  the Manager: the seam's calls, and the state file
//	static.go      the static policy: who gets how many CPUs
//	take.go        which CPUs: packed
//	distribute.go  which CPUs: distributed over NUMA nodes
//	hints.go       from which NUMA nodes
//	options.go     the options of the policy
//	migrate.go     takes over the state of another policy, machine or reservation
//	sharing.go     keeps running containers on the shared CPUs
//
// With the policy none, containers may use all CPUs, and all calls return at once.
package cpumanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cpumanager/state"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/durable"
)

// Config configures a Manager. All fields but PolicyOptions and ReservedCPUs are required.
type Config struct {
	Policy         string // none or static
	PolicyOptions  map[string]string
	Topology       *cputopology.Topology
	TopologyPolicy string            // of the topology manager
	ReservedCPUs   cpuset.CPUSet     // by name; empty: the lowest ones
	Reserved       resource.Quantity // CPUs reserved for the system and for the node
	GateOn         func(gate string) bool
	Dir            string // the node's root directory
	Retry          time.Duration
	Runtime        Runtime
	Metrics        *resourcemetrics.Metrics
	Clock          clock.Clock
	Logger         *slog.Logger
}

// Manager assigns CPUs. It implements the seam's interfaces.
type Manager struct {
	c    Config
	path string

	mu     sync.Mutex
	policy *static // nil: the policy none
	state  state.State
	given  map[containerName]string // the CPUs with which containers were created
	former bool                     // with the policy none: containers of a former static policy have yet to get all CPUs

	sharing *sharing
}

type containerName struct{ pod, name string }

// New reads the state file, and makes the manager. State that does not fit the configuration or the machine is migrated; Changes returns
// what that changes. Errors of the configuration are kubelet's.
func New(c Config) (*Manager, error) {
	m := &Manager{c: c, path: filepath.Join(c.Dir, state.FileName), given: map[containerName]string{}}
	m.sharing = newSharing(m)
	switch c.Policy {
	case PolicyNone:
		if len(c.PolicyOptions) > 0 {
			return nil, fmt.Errorf("new none policy error: None policy: received unsupported options=%v", c.PolicyOptions) // upstream's words
		}
	case PolicyStatic:
		if c.Reserved.IsZero() {
			return nil, errors.New("[cpumanager] unable to determine reserved CPU resources for static policy") // upstream's words
		}
		policy, err := newStatic(c, &m.state)
		if err != nil {
			return nil, fmt.Errorf("new static policy error: %w", err)
		}
		m.policy = policy
	default:
		return nil, fmt.Errorf("unknown policy: %q", c.Policy)
	}
	return m, m.restore()
}

func newStatic(c Config, s *state.State) (*static, error) {
	options, err := ParseOptions(c.PolicyOptions, c.GateOn)
	if err != nil {
		return nil, err
	}
	if err := options.fits(c.Topology, c.TopologyPolicy); err != nil {
		return nil, err
	}
	p := &static{
		topology: c.Topology, options: options, group: c.Topology.Average(cputopology.PhysicalCore),
		podLevel: c.GateOn("PodLevelResourceManagers"), metrics: c.Metrics, state: s,
	}
	return p, p.reserve(c.ReservedCPUs, c.Reserved)
}

// podLevel reports whether the policy assigns CPUs to a pod as a whole.
func (m *Manager) podLevel(pod *corev1.Pod) bool { return m.policy.podLevel && podshare.PodLevel(pod) }

// TopologyHints returns from which NUMA nodes a container or a pod can have its CPUs.
func (m *Manager) TopologyHints(r containermanager.Request) map[string][]containermanager.TopologyHint {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.policy.hints(r.Pod, r.Container)
}

// Allocate assigns CPUs to a container. It is idempotent.
func (m *Manager) Allocate(_ context.Context, r containermanager.Request) error {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	return m.change(func() error { return m.policy.allocate(r.Pod, r.Container, r.Affinity) })
}

// AllocatePod assigns CPUs to a pod with pod-level resources, and to its containers. It is idempotent.
func (m *Manager) AllocatePod(_ context.Context, r containermanager.Request) error {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	return m.change(func() error { return m.policy.allocatePod(r.Pod, r.Affinity) })
}

// Release takes a pod's CPUs back.
func (m *Manager) Release(_ context.Context, pod types.UID) error {
	if m.policy == nil {
		return nil
	}
	return m.change(func() error {
		m.policy.release(string(pod))
		maps.DeleteFunc(m.given, func(c containerName, _ string) bool { return c.pod == string(pod) })
		return nil
	})
}

// change changes the state, and writes it before the caller acts on it. A state that cannot be written does not change.
func (m *Manager) change(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.state.Clone()
	err := do()
	if err == nil && !equal(before, m.state) {
		err = m.write()
	}
	if err != nil {
		m.state = before
		m.policy.measure()
		return err
	}
	m.policy.measure()
	if !before.Shared.Equals(m.state.Shared) {
		m.sharing.kick()
	}
	return nil
}

func equal(a, b state.State) bool {
	return a.Policy == b.Policy && a.Shared.Equals(b.Shared) && maps.EqualFunc(a.Pods, b.Pods, cpuset.CPUSet.Equals) &&
		maps.EqualFunc(a.Containers, b.Containers, func(x, y map[string]cpuset.CPUSet) bool { return maps.EqualFunc(x, y, cpuset.CPUSet.Equals) })
}

// write writes the state file.
func (m *Manager) write() error {
	text, err := state.Encode(m.state)
	if err != nil {
		return err
	}
	if err := durable.Write(m.path, 0o600, text); err != nil {
		return fmt.Errorf("write CPU assignments: %w", err)
	}
	return nil
}

// AddOptions adds a container's CPUs. CPUs of its own have no CFS quota.
func (m *Manager) AddOptions(_ context.Context, pod *corev1.Pod, c *corev1.Container, to *containermanager.Options) error {
	if m.policy == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	to.CPUs = m.cpusOf(string(pod.UID), c.Name).String()
	to.NoQuota = m.alone(pod, c)
	m.given[containerName{string(pod.UID), c.Name}] = to.CPUs
	return nil
}

// ResourceStatus looks whether the shared CPUs have changed while a container was being created. There is no status of CPUs.
func (m *Manager) ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	if m.policy == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if given, ok := m.given[containerName{string(pod.UID), container}]; ok && given != m.cpusOf(string(pod.UID), container).String() {
		m.sharing.kick()
	}
	return nil
}

// cpusOf returns a container's own CPUs, or the shared ones.
func (m *Manager) cpusOf(pod, container string) cpuset.CPUSet {
	if cpus, ok := m.state.Containers[pod][container]; ok {
		return cpus
	}
	return m.state.Shared
}

// alone reports whether no other container runs on the container's CPUs.
func (m *Manager) alone(pod *corev1.Pod, c *corev1.Container) bool {
	if _, has := m.state.Containers[string(pod.UID)][c.Name]; !has {
		return false
	}
	return !m.podLevel(pod) || podshare.Equal(c) && whole(c.Resources.Limits[corev1.ResourceCPU])
}

// Pinned reports whether a container has CPUs of its own, and so no CFS quota. Without a container, it reports whether the pod's cgroup has
// none: one of its containers has CPUs of its own; of a pod with pod-level resources, all have.
func (m *Manager) Pinned(pod *corev1.Pod, container *corev1.Container) bool {
	if m.policy == nil {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if container != nil {
		return m.alone(pod, container)
	}
	some, all := false, true
	for _, c := range podshare.Containers(pod) {
		if m.alone(pod, c) {
			some = true
		} else {
			all = false
		}
	}
	if m.podLevel(pod) {
		return all
	}
	return some
}

// Exclusive returns a container's own CPUs; none: it shares.
func (m *Manager) Exclusive(pod types.UID, container string) cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Containers[string(pod)][container]
}

// OfPod returns the CPUs of a pod with pod-level resources.
func (m *Manager) OfPod(pod types.UID) cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Pods[string(pod)]
}

// Allocatable returns the CPUs that containers can have for themselves, used or not.
func (m *Manager) Allocatable() cpuset.CPUSet {
	if m.policy == nil {
		return cpuset.New()
	}
	return m.c.Topology.All().Difference(m.policy.reserved)
}

// Shared returns the CPUs of all containers without CPUs of their own; none: these may use all.
func (m *Manager) Shared() cpuset.CPUSet {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Shared
}

// Run keeps running containers on their CPUs until ctx is done.
func (m *Manager) Run(ctx context.Context) error { return m.sharing.run(ctx) }
