// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package allocatable_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

func TestHugePagesAreNoMemoryForPods(t *testing.T) {
	n := allocatable.Node{Machine: hardware.Machine{Memory: 4 << 30, HugePages: []hardware.HugePages{
		{Size: 64 << 10}, {Size: 2 << 20, Total: 6 << 20}, {Size: 1 << 30, Total: 1 << 30},
	}}}
	capacity, left := n.Capacity(), n.Allocatable()
	for name, want := range map[corev1.ResourceName]string{"hugepages-64Ki": "0", "hugepages-2Mi": "6Mi", "hugepages-1Gi": "1Gi",
		"memory": "4Gi"} {
		if got := capacity[name]; got.String() != want {
			t.Errorf("capacity of %s is %s, not %s", name, &got, want)
		}
	}
	for name, want := range map[corev1.ResourceName]string{"hugepages-2Mi": "6Mi", "hugepages-1Gi": "1Gi", "memory": "3066Mi"} {
		if got := left[name]; got.String() != want {
			t.Errorf("allocatable of %s is %s, not %s", name, &got, want)
		}
	}
}

func TestReservedResourcesAndThresholds(t *testing.T) {
	k := kubeletconfig.Default()
	k.SystemReserved, k.KubeReserved = map[string]string{"memory": "64Mi", "cpu": "100m"}, map[string]string{"memory": "32Mi", "cpu": "1"}
	k.EvictionHard = map[string]string{"memory.available": "16Mi"}
	k.ReservedSystemCPUs, k.PodsPerCore = "0-1", 3
	n, err := allocatable.New(hardware.Machine{CPUs: 4, Memory: 1 << 30, Disk: 1 << 30}, 110, k)
	if err != nil {
		t.Fatal(err)
	}
	capacity, left := n.Capacity(), n.Allocatable()
	// Processors that are set aside replace what is reserved of them.
	for name, want := range map[corev1.ResourceName][2]string{"cpu": {"4", "2"}, "memory": {"1Gi", "912Mi"}, "pods": {"12", "12"}} {
		all, free := capacity[name], left[name]
		if all.String() != want[0] || free.String() != want[1] {
			t.Errorf("%s: %s, of which %s, not %v", name, &all, &free, want)
		}
	}
	if _, err := allocatable.New(hardware.Machine{}, 1, &configv1beta1.KubeletConfiguration{ReservedSystemCPUs: "a"}); err == nil {
		t.Error("processors that cannot be read")
	}
}
