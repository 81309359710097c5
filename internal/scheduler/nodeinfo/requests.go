// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Requests returns the pod's requests, overhead included, and the same with defaults for containers without requests.
func Requests(pod *corev1.Pod) (exact *Resource, nonZeroCPU, nonZeroMemory int64) {
	if plain(pod) {
		if exact, nonZeroCPU, nonZeroMemory, ok := sum(pod.Spec.Containers); ok {
			return exact, nonZeroCPU, nonZeroMemory
		}
	}
	return requests(pod)
}

// plain reports whether the pod's requests are the sum of its containers' requests: it has no init containers or sidecars, no pod-level
// requests, and was not resized.
func plain(pod *corev1.Pod) bool {
	return len(pod.Spec.InitContainers) == 0 && pod.Spec.Resources == nil && len(pod.Spec.Overhead) == 0 &&
		len(pod.Spec.ResourceClaims) == 0 &&
		len(pod.Status.ContainerStatuses) == 0 && pod.Status.Resources == nil && !resourcehelper.IsPodResizeInfeasible(pod)
}

// sum adds up the containers' requests. ok is false if an amount is finer than the nodes' unit: such amounts have to be summed before they
// are rounded.
func sum(containers []corev1.Container) (exact *Resource, nonZeroCPU, nonZeroMemory int64, ok bool) {
	exact = &Resource{}
	for i := range containers {
		cpu, memory := int64(DefaultMilliCPU), int64(DefaultMemory)
		for name, q := range containers[i].Resources.Requests {
			unit := resource.Scale(0)
			if name == corev1.ResourceCPU {
				unit = resource.Milli
			}
			n := q.ScaledValue(unit)
			if n < 0 || resource.NewScaledQuantity(n, unit).Cmp(q) != 0 {
				return nil, 0, 0, false
			}
			switch name {
			case corev1.ResourceCPU:
				cpu = n
				exact.MilliCPU += n
			case corev1.ResourceMemory:
				memory = n
				exact.Memory += n
			case corev1.ResourceEphemeralStorage:
				exact.EphemeralStorage += n
			case corev1.ResourcePods:
				exact.AllowedPodNumber += int(n)
			default:
				if exact.Scalar == nil {
					exact.Scalar = map[corev1.ResourceName]int64{}
				}
				exact.Scalar[name] += n
			}
		}
		nonZeroCPU += cpu
		nonZeroMemory += memory
	}
	return exact, nonZeroCPU, nonZeroMemory, true
}

// requests computes any pod's requests with upstream's library.
func requests(pod *corev1.Pod) (exact *Resource, nonZeroCPU, nonZeroMemory int64) {
	exact = NewResource(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{UseStatusResources: true}))
	filled := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{
		UseStatusResources: true,
		NonMissingContainerRequests: corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(DefaultMilliCPU, resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(DefaultMemory, resource.BinarySI),
		},
	})
	return exact, filled.Cpu().MilliValue(), filled.Memory().Value()
}
