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

// Swap describes the machine's swap, and how containers may use it.
type Swap struct {
	Bound   bool  // the kernel can limit it for each cgroup; otherwise it is left unset
	Unified bool  // with cgroups v2
	Limited bool  // burstable containers may swap; otherwise none may
	Bytes   int64 // of the machine
}

// swap limits the container's swap. With limited swap, a container gets the fraction of swap that it requests of the machine's memory.
func (n *Node) swap(out *runtimeapi.LinuxContainerResources, pod *corev1.Pod, c *corev1.Container) {
	switch {
	case !n.Swap.Bound:
	case !n.Swap.Unified:
		// Memory and swap together: some swapping is still possible. Without a memory limit there is no swap limit.
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
	case request.Cmp(*limit) == 0, request.Value() > n.MemoryBytes, n.MemoryBytes == 0: // nothing is requested, or everything is
		return 0
	}
	return int64(float64(request.Value()) / float64(n.MemoryBytes) * float64(n.Swap.Bytes))
}
