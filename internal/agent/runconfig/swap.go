// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"cmp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// Swap is what containers may have of the machine's swap.
type Swap struct {
	Bound   bool  // the kernel bounds it for each cgroup; otherwise nothing is said of it
	Unified bool  // with cgroups v2
	Limited bool  // burstable containers have swap; otherwise none have
	Bytes   int64 // of the machine
}

// swap bounds the container's swap. Of a swap that is shared out, it has the part that it asks for of the machine's memory.
func (n *Node) swap(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	switch {
	case !n.Swap.Bound:
	case !n.Swap.Unified:
		// Memory and swap together: some swapping is still possible. Without a limit of memory there is none of swap.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	default:
		out.Unified = map[string]string{"memory.swap.max": strconv.FormatInt(n.swapOf(pod, c), 10)}
	}
}

func (n *Node) swapOf(pod *corev1.Pod, c *corev1.Container) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	switch {
	case !n.Swap.Limited, podspec.IsCritical(pod), cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)) != corev1.PodQOSBurstable:
		return 0
	case request.Cmp(*limit) == 0, request.Value() > n.MemoryBytes, n.MemoryBytes == 0: // neither says anything, or nothing is left open
		return 0
	}
	return int64(float64(request.Value()) / float64(n.MemoryBytes) * float64(n.Swap.Bytes))
}
