// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containermanager

import (
	"context"
	"math/bits"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// NUMANodes is a set of NUMA nodes: bit N stands for node N, from 0 to 63.
type NUMANodes uint64

// NUMAMask returns the set of the nodes. Numbers outside of 0 to 63 are not in it.
func NUMAMask(nodes ...int) NUMANodes {
	var out NUMANodes
	for _, n := range nodes {
		if n >= 0 && n < 64 {
			out |= 1 << n
		}
	}
	return out
}

// Has reports whether the node is in the set.
func (n NUMANodes) Has(node int) bool { return node >= 0 && node < 64 && n&(1<<node) != 0 }

// Count returns how many nodes are in the set.
func (n NUMANodes) Count() int { return bits.OnesCount64(uint64(n)) }

// TopologyHint is a set of NUMA nodes from which resources can be allocated together.
type TopologyHint struct {
	Nodes     NUMANodes
	Any       bool // all nodes are equally good: upstream's nil affinity
	Preferred bool
}

// Aligned reports whether the hint names NUMA nodes.
func (h TopologyHint) Aligned() bool { return !h.Any && h.Nodes != 0 }

// HintProvider says from which NUMA nodes a manager can serve a container, or a pod as a whole.
type HintProvider interface {
	// TopologyHints returns the possibilities for each resource. Nil: the manager has no preference. A resource with a nil list has none
	// either; a resource with an empty list cannot be served at all.
	TopologyHints(r Request) map[string][]TopologyHint
}

// Scopes of a topology policy, as kubelet names them.
const (
	ContainerScope = "container"
	PodScope       = "pod"
)

// Topology is a topology policy: it merges the hints of all managers.
type Topology interface {
	// Scope returns ContainerScope or PodScope.
	Scope() string
	// Merge returns the best common hint, and whether the policy admits it. The hints are one map for each manager.
	Merge(hints []map[string][]TopologyHint) (best TopologyHint, admit bool)
}

// PodTopology is a Topology that allocates for some pods as a whole, from their pod-level resources.
type PodTopology interface {
	WholePod(pod *corev1.Pod) bool
}

// PodAllocator is an Allocator that can allocate for a pod as a whole. The others allocate for its containers.
type PodAllocator interface {
	// AllocatePod allocates for a pod; the request has no container.
	AllocatePod(ctx context.Context, r Request) error
}

// wholePod reports whether the pod has pod-level resources that are allocated as such.
func (m *Manager) wholePod(pod *corev1.Pod) bool {
	t, ok := m.topology.(PodTopology)
	return ok && t.WholePod(pod)
}

// containers returns the containers that take part in admission: init containers first.
func containers(pod *corev1.Pod) []*corev1.Container {
	out := make([]*corev1.Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// align merges the hints for the pod or for each of its containers, and allocates accordingly.
func (m *Manager) align(ctx context.Context, pod *corev1.Pod, why Operation) error {
	var affinity TopologyHint
	if m.topology != nil && m.topology.Scope() == PodScope {
		best, admit := m.topology.Merge(m.hints(Request{Operation: why, Pod: pod}))
		if !admit {
			return topologyAffinity(PodScope, m.wholePod(pod))
		}
		affinity = best
		if m.wholePod(pod) {
			return m.allocatePod(ctx, Request{Operation: why, Pod: pod, Affinity: affinity})
		}
	}
	for _, c := range containers(pod) {
		r := Request{Operation: why, Pod: pod, Container: c, Affinity: affinity}
		if m.topology != nil && m.topology.Scope() == ContainerScope {
			best, admit := m.topology.Merge(m.hints(r))
			if !admit {
				return topologyAffinity(ContainerScope, m.wholePod(pod))
			}
			r.Affinity = best
		}
		for _, row := range m.rows {
			if row.Allocator == nil {
				continue
			}
			if err := row.Allocator.Allocate(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// allocatePod allocates for a pod as a whole.
func (m *Manager) allocatePod(ctx context.Context, r Request) error {
	for _, row := range m.rows {
		if whole, ok := row.Allocator.(PodAllocator); ok {
			if err := whole.AllocatePod(ctx, r); err != nil {
				return err
			}
			continue
		}
		if row.Allocator == nil {
			continue
		}
		for _, r.Container = range containers(r.Pod) {
			if err := row.Allocator.Allocate(ctx, r); err != nil {
				return err
			}
		}
		r.Container = nil
	}
	return nil
}

// hints collects the hints of all managers.
func (m *Manager) hints(r Request) []map[string][]TopologyHint {
	var out []map[string][]TopologyHint
	for _, row := range m.rows {
		if row.Hints != nil {
			out = append(out, row.Hints.TopologyHints(r))
		}
	}
	return slices.Clip(out)
}
