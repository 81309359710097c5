// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Throttle is the memory usage from which the kernel throttles containers and reclaims their memory, before they reach their limits. The
// zero value disables it.
type Throttle struct {
	Factor      float64 // from the request to the limit; zero if the kernel does not support it (cgroups v1)
	Allocatable int64   // memory for all pods in bytes: the limit of containers without one
}

// throttle sets the threshold of a container. There is none if the request equals the limit, or if only the pod's limit applies.
func (n *Node) throttle(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	request, limit := c.Resources.Requests.Memory().Value(), c.Resources.Limits.Memory().Value()
	switch {
	case n.Throttle.Factor == 0, request != 0 && request == limit:
		return
	case limit == 0 && resourcehelper.IsPodLevelResourcesSet(pod) && !pod.Spec.Resources.Limits.Memory().IsZero():
		return
	case limit == 0:
		limit = n.Throttle.Allocatable
	}
	page := int64(os.Getpagesize())
	if high := int64(float64(request)+float64(limit-request)*n.Throttle.Factor) / page * page; high > request {
		if out.Unified == nil {
			out.Unified = map[string]string{}
		}
		out.Unified["memory.high"] = strconv.FormatInt(high, 10)
	}
}
