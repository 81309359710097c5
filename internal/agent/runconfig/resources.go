// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// The figures of the kernel's CPU scheduler.
const (
	minQuota      = 1_000 // microseconds
	minShares     = 2
	maxShares     = 262_144
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// Resources are a container's bounds.
func (n *Node) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{OomScoreAdj: n.oomScore(pod, c)}
	request, hasRequest := c.Resources.Requests[corev1.ResourceCPU]
	limit := c.Resources.Limits[corev1.ResourceCPU]
	if !hasRequest {
		request = limit
	}
	out.CpuShares = min(max(request.MilliValue()*sharesPerCPU/milliPerCPU, minShares), maxShares)
	if !limit.IsZero() && !n.NoQuota {
		period := cmp.Or(n.QuotaPeriod, 100*time.Millisecond).Microseconds()
		out.CpuPeriod = period
		out.CpuQuota = max(limit.MilliValue()*period/milliPerCPU, minQuota)
	}
	if memory := c.Resources.Limits[corev1.ResourceMemory]; !memory.IsZero() {
		out.MemoryLimitInBytes = memory.Value()
	}
	out.HugepageLimits = n.hugePages(pod, c)
	return out
}

// hugePages bounds the container's huge pages of each size that the machine knows: by its own limit, by the pod's where it has none,
// and at none where neither says anything.
func (n *Node) hugePages(pod *corev1.Pod, c *corev1.Container) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for _, size := range n.HugePages {
		limit, ok := c.Resources.Limits[HugePages(size)]
		if !ok && resourcehelper.IsPodLevelResourcesSet(pod) {
			limit = pod.Spec.Resources.Limits[HugePages(size)]
		}
		out = append(out, &runtimeapi.HugepageLimit{PageSize: pageUnit(size), Limit: uint64(limit.Value())})
	}
	return out
}

// HugePages is the resource of huge pages of a size in bytes: hugepages-2Mi.
func HugePages(size int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

// pageUnit is a page's size as cgroups name it: 64KB, 2MB, 1GB.
func pageUnit(size int64) string {
	for _, unit := range []struct {
		shift int
		name  string
	}{{30, "GB"}, {20, "MB"}} {
		if size>>unit.shift > 0 {
			return fmt.Sprintf("%d%s", size>>unit.shift, unit.name)
		}
	}
	return fmt.Sprintf("%dKB", size>>10)
}

// oomScore says how early the kernel kills the container when memory is short: the more
// of the machine's memory it has asked for, the later.
func (n *Node) oomScore(pod *corev1.Pod, c *corev1.Container) int64 {
	score := int64(oomBestEffort)
	switch cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)) {
	case corev1.PodQOSGuaranteed:
		score = oomGuaranteed
	case corev1.PodQOSBurstable:
		memory := c.Resources.Requests[corev1.ResourceMemory]
		if n.MemoryBytes > 0 {
			score = 1000 - 1000*memory.Value()/n.MemoryBytes
		}
		score = min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
	}
	return max(score, n.LowestOOMScore)
}
