// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// staticCPUPolicy is the CPU manager's policy with exclusive CPUs.
const staticCPUPolicy = "static"

// assigned returns why a Guaranteed pod cannot be resized: in 1.37 the CPU and memory managers assign what a pod had when it was admitted.
// Resources that do not change do not matter. The words are upstream's, and those of its metric.
func (m *Manager) assigned(pod *corev1.Pod) (why, detail string) {
	class := pod.Status.QOSClass
	if class == "" {
		class = podstatus.QOS(pod)
	}
	if class != corev1.PodQOSGuaranteed || m.Kubelet == nil {
		return "", ""
	}
	if m.Kubelet.CPUManagerPolicy == staticCPUPolicy && changes(pod, corev1.ResourceCPU) {
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", m.Kubelet.CPUManagerPolicy), cpusAssigned
	}
	if m.Kubelet.MemoryManagerPolicy == configv1beta1.StaticMemoryManagerPolicy && changes(pod, corev1.ResourceMemory) {
		return fmt.Sprintf("Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", m.Kubelet.MemoryManagerPolicy), memoryAssigned
	}
	return "", ""
}

// changes reports whether a container's resource differs from what the status says that it has.
func changes(pod *corev1.Pod, name corev1.ResourceName) bool {
	have := map[string]*corev1.ResourceRequirements{}
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			have[s.Name] = s.Resources
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			is := have[c.Name]
			if is == nil {
				continue
			}
			request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
			if request.Cmp(is.Requests[name]) != 0 || limit.Cmp(is.Limits[name]) != 0 {
				return true
			}
		}
	}
	return false
}
