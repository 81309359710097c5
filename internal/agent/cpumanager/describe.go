// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"
)

// Describer tells the pod resources API what containers have.
type Describer struct{ *Manager }

// Describe adds the CPUs that a container has for itself.
func (m Describer) Describe(pod *corev1.Pod, c *corev1.Container, to *podresources.ContainerResources) {
	if m.policy == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.alone(pod, c) {
		to.CpuIds = append(to.CpuIds, ids(m.state.Containers[string(pod.UID)][c.Name])...)
	}
}

// DescribePod adds the CPUs of a pod with pod-level resources.
func (m Describer) DescribePod(pod *corev1.Pod, to *podresources.PodResources) {
	to.CpuIds = append(to.CpuIds, ids(m.OfPod(pod.UID))...)
}

// DescribeNode adds the CPUs that containers can have for themselves.
func (m Describer) DescribeNode(to *podresources.AllocatableResourcesResponse) {
	to.CpuIds = append(to.CpuIds, ids(m.Allocatable())...)
}

func ids(cpus cpuset.CPUSet) []int64 {
	var out []int64
	for _, id := range cpus.List() {
		out = append(out, int64(id))
	}
	return out
}
