// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// The constants of the kernel's CPU scheduler.
const (
	minQuota      = 1_000 // microseconds
	minShares     = 2
	maxShares     = 262_144
	sharesPerCPU  = 1024
	milliPerCPU   = 1000
	oomGuaranteed = -997
	oomBestEffort = 1000
)

// Resources returns a container's cgroup settings. The pod's limits apply where the container has none.
func (n *Node) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	limits := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limits[name] = c.Resources.Limits[name]
		if own := limits[name]; own.IsZero() && resourcehelper.IsPodLevelResourcesSet(pod) {
			limits[name] = pod.Spec.Resources.Limits[name]
		}
	}
	out := n.bounds(c.Resources.Requests, limits)
	if out.CpuQuota > 0 && n.pinned(pod, c) {
		out.CpuQuota = -1
	}
	out.OomScoreAdj = n.oomScore(pod, c)
	out.HugepageLimits = n.hugePages(pod, c)
	n.swap(out, pod, c)
	n.throttle(out, pod, c)
	return out
}

// bounds converts requests and limits into cgroup settings. The request defaults to the limit.
func (n *Node) bounds(requests, limits corev1.ResourceList) *runtimeapi.LinuxContainerResources {
	limit := limits[corev1.ResourceCPU]
	request, ok := requests[corev1.ResourceCPU]
	if !ok {
		request = limit
	}
	out := &runtimeapi.LinuxContainerResources{CpuShares: Shares(request.MilliValue())}
	if !limit.IsZero() && !n.NoQuota {
		out.CpuPeriod, out.CpuQuota = n.period(), n.quota(limit.MilliValue())
	}
	if memory := limits[corev1.ResourceMemory]; !memory.IsZero() {
		out.MemoryLimitInBytes = memory.Value()
	}
	return out
}

func (n *Node) pinned(pod *corev1.Pod, c *corev1.Container) bool {
	return n.Pinned != nil && n.Pinned(pod, c)
}

// Shares returns the kernel's CPU shares of a number of millicores.
func Shares(milli int64) int64 {
	return min(max(milli*sharesPerCPU/milliPerCPU, minShares), maxShares)
}

// period returns the CFS quota period in microseconds.
func (n *Node) period() int64 {
	return cmp.Or(n.QuotaPeriod, 100*time.Millisecond).Microseconds()
}

func (n *Node) quota(milli int64) int64 {
	return max(milli*n.period()/milliPerCPU, minQuota)
}

// PodResources are the settings of a pod's own cgroup.
type PodResources struct {
	Shares        int64
	Quota, Period int64           // microseconds; quota -1: no limit, period 0: unset
	Memory        int64           // bytes; 0: unset
	HugePages     map[int64]int64 // bytes, by page size
}

// Pod returns the settings for a pod as a whole, including its overhead. A limit applies only if each container or the pod itself has one:
// otherwise the sum would limit the containers without limits.
// out a container without bounds would bound it.
func (n *Node) Pod(pod *corev1.Pod) PodResources {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	cpu, memory := limits[corev1.ResourceCPU], limits[corev1.ResourceMemory]
	request := requests[corev1.ResourceCPU]
	out := PodResources{Shares: Shares(request.MilliValue()), HugePages: map[int64]int64{}}
	for name, q := range requests {
		if text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix); ok {
			if size, err := resource.ParseQuantity(text); err == nil {
				out.HugePages[size.Value()] += q.Value()
			}
		}
	}
	class := cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod))
	if class == corev1.PodQOSBestEffort {
		out.Shares = minShares
		return out
	}
	if class == corev1.PodQOSGuaranteed || Limited(pod, corev1.ResourceCPU) {
		out.Quota, out.Period = n.quota(cpu.MilliValue()), n.period()
		if n.NoQuota || n.pinned(pod, nil) {
			out.Quota = -1
		}
	}
	if class == corev1.PodQOSGuaranteed || Limited(pod, corev1.ResourceMemory) {
		out.Memory = memory.Value()
	}
	return out
}

// Limited reports whether the pod, or each of its containers, has a limit.
func Limited(pod *corev1.Pod, name corev1.ResourceName) bool {
	has := func(list corev1.ResourceList) bool { q := list[name]; return !q.IsZero() }
	if resourcehelper.IsPodLevelResourcesSet(pod) && has(pod.Spec.Resources.Limits) {
		return true
	}
	return !slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers),
		func(c corev1.Container) bool { return !has(c.Resources.Limits) })
}

// sandboxResources returns the size of a pod for runtimes that run pods in virtual machines: the sum of the containers, and the overhead of
// the sandbox.
func (n *Node) sandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources) {
	without := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	resources, overhead = n.bounds(resourcehelper.PodRequests(pod, without), resourcehelper.PodLimits(pod, without)),
		&runtimeapi.LinuxContainerResources{}
	if pod.Spec.Overhead != nil {
		overhead = n.bounds(pod.Spec.Overhead, pod.Spec.Overhead)
	}
	return resources, overhead
}

// hugePages limits the container's huge pages of each size on the machine: by its own limit, otherwise by the pod's, otherwise to none.
func (n *Node) hugePages(pod *corev1.Pod, c *corev1.Container) []*runtimeapi.HugepageLimit {
	var out []*runtimeapi.HugepageLimit
	for _, size := range n.HugePages {
		limit, ok := c.Resources.Limits[HugePages(size)]
		if !ok && resourcehelper.IsPodLevelResourcesSet(pod) {
			limit = pod.Spec.Resources.Limits[HugePages(size)]
		}
		out = append(out, &runtimeapi.HugepageLimit{PageSize: PageUnit(size), Limit: uint64(limit.Value())})
	}
	return out
}

// HugePages returns the resource name of huge pages of a size in bytes: hugepages-2Mi.
func HugePages(size int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
}

// PageUnit returns a page size in the form that cgroups use: 64KB, 2MB, 1GB.
func PageUnit(size int64) string {
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

// oomScore returns the OOM score adjustment: the more of the machine's memory the container requests, the later the kernel kills it. The
// pod's request beyond its containers' is divided among them, and a sidecar outlives the containers that it serves.
func (n *Node) oomScore(pod *corev1.Pod, c *corev1.Container) int64 {
	score := int64(oomBestEffort)
	switch class := cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)); {
	case class == corev1.PodQOSGuaranteed || nodeCritical(pod):
		score = oomGuaranteed
	case class == corev1.PodQOSBurstable:
		asked := c.Resources.Requests.Memory().Value()
		sidecar := slices.ContainsFunc(pod.Spec.InitContainers, func(i corev1.Container) bool { return i.Name == c.Name }) &&
			c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if sidecar && len(pod.Spec.Containers) > 0 {
			least := pod.Spec.Containers[0].Resources.Requests.Memory().Value()
			for _, other := range pod.Spec.Containers[1:] {
				least = min(least, other.Resources.Requests.Memory().Value())
			}
			asked = max(asked, least)
		}
		if n.MemoryBytes > 0 {
			score = 1000 - 1000*(asked+sharedMemory(pod))/n.MemoryBytes
		}
		score = min(max(score, 1000+oomGuaranteed), oomBestEffort-1)
	}
	return max(score, n.LowestOOMScore)
}

// sharedMemory returns each container's part of the pod's request beyond its containers'.
func sharedMemory(pod *corev1.Pod) int64 {
	if !resourcehelper.IsPodLevelRequestsSet(pod) || pod.Spec.Resources.Requests.Memory().IsZero() {
		return 0
	}
	theirs := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	left := pod.Spec.Resources.Requests.Memory().Value() - theirs.Memory().Value()
	return max(left, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

// nodeCritical reports whether the pod is critical for the node.
func nodeCritical(pod *corev1.Pod) bool {
	return pod.Spec.PriorityClassName == "system-node-critical" && podspec.IsCritical(pod)
}
