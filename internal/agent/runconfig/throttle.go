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

// Throttle says from which use of memory on the kernel slows containers down and takes memory back from them, before their limits end
// them. The zero value: from none.
type Throttle struct {
	Factor      float64 // of the way from the request to the limit; zero where the kernel cannot (cgroups v1)
	Allocatable int64   // memory that all pods may have together, in bytes: the limit of containers that have none
}

// throttle writes it down for a container. One that asks for all that it may have is not slowed down, and one that the pod's own limit
// bounds is by nothing of its own.
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
