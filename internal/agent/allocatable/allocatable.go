// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocatable computes the node's resources for pods: the capacity of its machine, the reserved part, and the rest. It is pure.
package allocatable

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// Node has the inputs of a node's resources.
type Node struct {
	Machine                      hardware.Machine
	MaxPods                      int64
	SystemReserved, KubeReserved corev1.ResourceList
	Thresholds                   []evict.Threshold // of eviction
}

// New reads the kubelet configuration. The number of pods is at most maxPods, and at most podsPerCore for each CPU.
func New(machine hardware.Machine, maxPods int64, k *configv1beta1.KubeletConfiguration) (n Node, err error) {
	n = Node{Machine: machine, MaxPods: maxPods}
	if n.SystemReserved, err = kubeletconfig.Reserved(k.SystemReserved); err != nil {
		return n, err
	}
	if n.KubeReserved, err = kubeletconfig.Reserved(k.KubeReserved); err != nil {
		return n, err
	}
	if k.ReservedSystemCPUs != "" {
		set, err := cpuset.Parse(k.ReservedSystemCPUs)
		if err != nil {
			return n, fmt.Errorf("read reserved processors: %w", err)
		}
		n.SystemReserved[corev1.ResourceCPU] = *resource.NewQuantity(int64(set.Size()), resource.DecimalSI)
		delete(n.KubeReserved, corev1.ResourceCPU)
	}
	if n.Thresholds, err = kubeletconfig.Evictions(k); err != nil {
		return n, err
	}
	if k.PodsPerCore > 0 {
		n.MaxPods = min(n.MaxPods, int64(k.PodsPerCore)*int64(machine.CPUs))
	}
	return n, nil
}

// Capacity returns the resources of the machine.
func (n Node) Capacity() corev1.ResourceList {
	m := n.Machine
	out := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(n.MaxPods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(m.Disk, resource.BinarySI),
	}
	for _, p := range m.HugePages {
		out[runconfig.HugePages(p.Size)] = *resource.NewQuantity(p.Total, resource.BinarySI)
	}
	return out
}

// Reserved returns the resources that are reserved for the system and for the node itself.
func (n Node) Reserved(name corev1.ResourceName) resource.Quantity {
	out := n.SystemReserved[name].DeepCopy()
	out.Add(n.KubeReserved[name])
	return out
}

// Allocatable returns the capacity without the reserved resources and without the eviction thresholds. Memory reserved as huge pages is not
// available to pods.
func (n Node) Allocatable() corev1.ResourceList {
	out := n.Capacity()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		left, capacity := out[name].DeepCopy(), out[name]
		left.Sub(n.Reserved(name))
		for _, t := range n.Thresholds {
			if t.Hard() && (t.Signal == evict.MemoryAvailable && name == corev1.ResourceMemory ||
				t.Signal == evict.NodeFSAvailable && name == corev1.ResourceEphemeralStorage) {
				left.Sub(t.Value.Of(capacity.Value()))
			}
		}
		for _, p := range n.Machine.HugePages {
			if name == corev1.ResourceMemory {
				left.Sub(*resource.NewQuantity(p.Total, resource.BinarySI))
			}
		}
		if left.Sign() < 0 {
			left.Set(0)
		}
		out[name] = left
	}
	return out
}

// Requested returns a pod's effective request: the pod's own, or the maximum of the sum of its containers and of its largest init container
// with the sidecars that run then; CPU in thousandths.
func Requested(pod *corev1.Pod, name corev1.ResourceName) int64 {
	all := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return Amount(all, name)
}

// Amount returns an amount in the resource's unit, as [podfit.Amount] does.
func Amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	return podfit.Amount(list, name)
}

// IsExtended reports whether a resource is not one of Kubernetes' own, as [podfit.IsExtended] does.
func IsExtended(name corev1.ResourceName) bool { return podfit.IsExtended(name) }
