// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
)

// Describe adds the memory that a container has for itself. A container that shares that of its pod has none.
func (m *Manager) Describe(pod *corev1.Pod, c *corev1.Container, to *podresources.ContainerResources) {
	if m.policy == nil || m.policy.podLevel && podshare.PodLevel(pod) && !podshare.Equal(c) {
		return
	}
	to.Memory = append(to.Memory, described(m.Assigned(pod.UID, c.Name))...)
}

// DescribePod adds the memory of a pod with pod-level resources.
func (m *Manager) DescribePod(pod *corev1.Pod, to *podresources.PodResources) {
	to.Memory = append(to.Memory, described(m.OfPod(pod.UID))...)
}

// DescribeNode adds the memory that containers can have.
func (m *Manager) DescribeNode(to *podresources.AllocatableResourcesResponse) {
	to.Memory = append(to.Memory, described(m.Allocatable())...)
}

func described(blocks []state.Block) []*podresources.ContainerMemory {
	var out []*podresources.ContainerMemory
	for _, b := range blocks {
		one := &podresources.ContainerMemory{MemoryType: string(b.Type), Size: b.Size, Topology: &podresources.TopologyInfo{}}
		for _, node := range b.NUMAAffinity {
			one.Topology.Nodes = append(one.Topology.Nodes, &podresources.NUMANode{ID: int64(node)})
		}
		out = append(out, one)
	}
	return out
}
