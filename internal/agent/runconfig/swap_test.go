// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestSwap(t *testing.T) {
	pod := func(c corev1.Container, also ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: append([]corev1.Container{c}, also...)}}
	}
	some := pod(bounded(list("memory", "1Gi"), list("memory", "2Gi")))
	important := some.DeepCopy()
	important.Spec.Priority = new(int32(2_000_000_000))
	same := list("cpu", "1", "memory", "1Gi")
	limited := Swap{Bound: true, Unified: true, Limited: true, Bytes: 4 << 30}
	for name, want := range map[string]struct {
		swap   Swap
		pod    *corev1.Pod
		max    string
		memory int64 // and swap, with v1
	}{
		"its part":                      {swap: limited, pod: some, max: "536870912"},
		"nobody has any":                {swap: Swap{Bound: true, Unified: true, Bytes: 4 << 30}, pod: some, max: "0"},
		"critical":                      {swap: limited, pod: important, max: "0"},
		"guaranteed":                    {swap: limited, pod: pod(bounded(same, same)), max: "0"},
		"best effort":                   {swap: limited, pod: pod(corev1.Container{Name: "c"}), max: "0"},
		"burstable, all that it may":    {swap: limited, pod: pod(bounded(list("memory", "1Gi"), list("memory", "1Gi"))), max: "0"},
		"burstable, says nothing":       {swap: limited, pod: pod(corev1.Container{Name: "c"}, bounded(same, nil)), max: "0"},
		"more than there is of memory":  {swap: limited, pod: pod(bounded(list("memory", "9Gi"), nil)), max: "0"},
		"v1":                            {swap: Swap{Bound: true, Bytes: 4 << 30}, pod: some, memory: 2 << 30},
		"v1 without a limit":            {swap: Swap{Bound: true, Bytes: 4 << 30}, pod: pod(bounded(list("memory", "1Gi"), nil))},
		"the kernel does not bound any": {pod: some},
	} {
		t.Run(name, func(t *testing.T) {
			n := Node{MemoryBytes: 8 << 30, Swap: want.swap}
			got := n.Resources(want.pod, &want.pod.Spec.Containers[0])
			if got.Unified["memory.swap.max"] != want.max || got.MemorySwapLimitInBytes != want.memory {
				t.Errorf("%v, %d", got.Unified, got.MemorySwapLimitInBytes)
			}
		})
	}
}
