// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podfit counts what the pods of a node request, and says what the node lacks for one more, in kubelet's words. Real and simulated
// nodes decide by it. The package has no state of its own and no clock.
package podfit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"
)

// OutOf begins the reason of a lack of a resource, before the resource's name.
const OutOf = "OutOf"

// Rejection is a final rejection: the pod fails with the reason and the message in its status.
type Rejection struct{ Reason, Message string }

// StatusMessage returns the message in the pod's status.
func (r *Rejection) StatusMessage() string { return "Pod was rejected: " + r.Message }

// Error implements error.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Insufficient is how much of a resource the node lacks for a pod; CPU in thousandths.
type Insufficient struct {
	Resource corev1.ResourceName
	Amount   int64
	Message  string
}

// Rejection returns the rejection of the pod for lack of the resource.
func (s Insufficient) Rejection() *Rejection {
	return &Rejection{OutOf + string(s.Resource), s.Message}
}

// Requested sums what the pods of a node request. The zero value is that of a node without pods. It is not safe for concurrent use.
type Requested struct {
	pods    int64
	amounts map[corev1.ResourceName]int64 // CPU in thousandths
}

// Add adds a pod with its requests.
func (r *Requested) Add(requests corev1.ResourceList) { r.count(requests, 1) }

// Remove removes a pod with the requests that it was added with.
func (r *Requested) Remove(requests corev1.ResourceList) { r.count(requests, -1) }

func (r *Requested) count(requests corev1.ResourceList, pods int64) {
	if r.amounts == nil {
		r.amounts = make(map[corev1.ResourceName]int64, len(requests))
	}
	r.pods += pods
	for name := range requests {
		r.amounts[name] += pods * Amount(requests, name)
	}
}

// Reject returns why a node that has these allocatable resources lacks room for one more pod; nil: it has room.
func (r *Requested) Reject(pod *corev1.Pod, has corev1.ResourceList) *Rejection {
	if lacks := r.Lacks(pod, has); len(lacks) > 0 {
		return lacks[0].Rejection()
	}
	return nil
}

// Lacks returns the resources of which a node that has these allocatable resources has too little for one more pod.
func (r *Requested) Lacks(pod *corev1.Pod, has corev1.ResourceList) (out []Insufficient) {
	short := func(name corev1.ResourceName, wants, used, capacity int64) {
		out = append(out, Insufficient{
			Resource: name, Amount: wants - (capacity - used),
			Message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, wants, used, capacity),
		})
	}
	if limit := has[corev1.ResourcePods]; r.pods+1 > limit.Value() {
		short(corev1.ResourcePods, 1, r.pods, limit.Value())
	}
	requests := resourcehelper.PodRequests(fromNode(pod, has), resourcehelper.PodResourcesOptions{})
	for _, name := range inOrder(requests) {
		capacity := Amount(has, name)
		if wants := Amount(requests, name); wants > 0 && r.amounts[name]+wants > capacity {
			short(name, wants, r.amounts[name], capacity)
		}
	}
	return out
}

// inOrder returns the names of the checked resources: CPU, memory and ephemeral storage first, then the others by name.
func inOrder(requests corev1.ResourceList) []corev1.ResourceName {
	first := []corev1.ResourceName{corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourceCPU}
	names := slices.DeleteFunc(slices.Collect(maps.Keys(requests)), func(name corev1.ResourceName) bool {
		return !slices.Contains(first, name) && !strings.Contains(string(name), "/") &&
			!strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) &&
			!strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
	})
	slices.SortFunc(names, func(a, b corev1.ResourceName) int {
		return cmp.Or(slices.Index(first, b)-slices.Index(first, a), cmp.Compare(a, b))
	})
	return names
}

// fromNode returns the pod with only those requests that the node itself must satisfy. Extended resources that the Node does not have
// belong to the cluster, and the scheduler allocates those of resource claims.
func fromNode(pod *corev1.Pod, has corev1.ResourceList) *corev1.Pod {
	claimed := func(container string, name corev1.ResourceName) bool {
		s := pod.Status.ExtendedResourceClaimStatus
		return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
			return m.ContainerName == container && m.ResourceName == string(name)
		})
	}
	without := func(containers []corev1.Container) []corev1.Container {
		out := slices.Clone(containers)
		for i, c := range out {
			requests := maps.Clone(c.Resources.Requests)
			maps.DeleteFunc(requests, func(name corev1.ResourceName, _ resource.Quantity) bool {
				_, there := has[name]
				ofClass := strings.HasPrefix(string(name), resourceapi.ResourceDeviceClassPrefix)
				return IsExtended(name) && !there || (IsExtended(name) || ofClass) && claimed(c.Name, name)
			})
			out[i].Resources.Requests = requests
		}
		return out
	}
	shallow := *pod
	shallow.Spec.Containers, shallow.Spec.InitContainers = without(pod.Spec.Containers), without(pod.Spec.InitContainers)
	return &shallow
}

// Amount returns the amount of a resource in a list; CPU in thousandths.
func Amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q := list[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// IsExtended reports whether a resource is not one of Kubernetes' own: a device plug-in or a client added it to the Node.
func IsExtended(name corev1.ResourceName) bool {
	if !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) {
		return false
	}
	return !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}
