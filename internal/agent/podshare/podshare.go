// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podshare answers what a pod's definition says about exclusive resources: whether it may have some, and which of its containers
// run at the same time. It is pure.
package podshare

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// EmptyPool is the reason of a pod whose containers leave nothing of its pod-level resources to those that share.
const EmptyPool = "EmptyPodSharedPoolError"

// Guaranteed reports whether the pod has the class Guaranteed. The class in its status wins over the one of its definition.
func Guaranteed(pod *corev1.Pod) bool {
	if class := pod.Status.QOSClass; class != "" {
		return class == corev1.PodQOSGuaranteed
	}
	return podstatus.QOS(pod) == corev1.PodQOSGuaranteed
}

// PodLevel reports whether the pod has pod-level resources.
func PodLevel(pod *corev1.Pod) bool { return resourcehelper.IsPodLevelResourcesSet(pod) }

// Equal reports whether a container requests CPU and memory and limits them to the same amounts.
func Equal(c *corev1.Container) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
		if request.IsZero() || request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}

// Containers returns the containers in the order in which they are admitted: init containers first.
func Containers(pod *corev1.Pod) []*corev1.Container {
	var out []*corev1.Container
	for i := range pod.Spec.InitContainers {
		out = append(out, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		out = append(out, &pod.Spec.Containers[i])
	}
	return out
}

// RunsOnce reports whether a container is an init container that ends before the next one starts: no sidecar.
func RunsOnce(pod *corev1.Pod, c *corev1.Container) bool {
	i := slices.IndexFunc(pod.Spec.InitContainers, func(init corev1.Container) bool { return init.Name == c.Name })
	return i >= 0 && !decide.Sidecar(&pod.Spec.InitContainers[i])
}

// Together returns the most of something that the pod's containers have at the same time.
func Together[N int | uint64](pod *corev1.Pod, has func(*corev1.Container) N) N {
	var most, running N
	for _, c := range Containers(pod) {
		if n := has(c); RunsOnce(pod, c) {
			most = max(most, running+n)
		} else {
			running += n
		}
	}
	return max(most, running)
}
