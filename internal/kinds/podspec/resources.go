// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// DefaultPodResources sets missing pod-level resources from those of the containers, if the pod has any pod-level resources: huge page
// limits, requests, and limits that every container sets.
func DefaultPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Requests) == 0 && len(r.Limits) == 0 ||
		!upstream.Gate("PodLevelResources") || !upstream.Gate("PodLevelResourcesFixDefaulting") {
		return
	}
	of := &corev1.Pod{Spec: corev1.PodSpec{Containers: pod.Spec.Containers, InitContainers: pod.Spec.InitContainers}}
	limits := resource.AggregateContainerLimits(of, resource.PodResourcesOptions{})
	for name, q := range limits {
		_, asked := r.Requests[name]
		if hugePages(name) && resource.IsSupportedPodLevelResource(name) && !asked {
			setAbsent(&r.Limits, name, q)
		}
	}
	for name, q := range resource.AggregateContainerRequests(of, resource.PodResourcesOptions{}) {
		if resource.IsSupportedPodLevelResource(name) && overcommittable(name) {
			setAbsent(&r.Requests, name, q)
		}
	}
	for name, q := range r.Limits {
		if resource.IsSupportedPodLevelResource(name) {
			setAbsent(&r.Requests, name, q.DeepCopy())
		}
	}
	for name, request := range r.Requests {
		q, ok := limits[name]
		if !ok || !resource.IsSupportedPodLevelResource(name) || !allLimit(&pod.Spec, name) {
			continue
		}
		if request.Cmp(q) > 0 {
			q = request
		}
		setAbsent(&r.Limits, name, q)
	}
}

// allLimit reports whether every container limits a resource.
func allLimit(spec *corev1.PodSpec, name corev1.ResourceName) bool {
	all := true
	eachContainer(spec, func(c *corev1.Container) {
		if _, ok := c.Resources.Limits[name]; !ok {
			all = false
		}
	})
	return all
}

func setAbsent(list *corev1.ResourceList, name corev1.ResourceName, q apiresource.Quantity) {
	if _, ok := (*list)[name]; ok {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = q
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// overcommittable reports whether a resource is Kubernetes' own and not huge pages.
func overcommittable(name corev1.ResourceName) bool {
	own := !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
	return own && !hugePages(name)
}
