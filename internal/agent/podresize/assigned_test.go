// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func TestAssignedResourcesAreNotResized(t *testing.T) {
	of := func(cpu, memory string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
		return corev1.ResourceRequirements{Requests: list, Limits: list}
	}
	m := New(Config{Kubelet: &configv1beta1.KubeletConfiguration{CPUManagerPolicy: "static", MemoryManagerPolicy: "Static"}})
	for _, c := range []struct{ cpu, memory, want string }{
		{"1", "1Gi", ""},
		{"2", "1Gi", `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`},
		{"1", "2Gi", `Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"`},
	} {
		is := of("1", "1Gi")
		pod := &corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: of(c.cpu, c.memory)}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Resources: &is}}},
		}
		if got, _ := m.assigned(pod); got != c.want {
			t.Errorf("%s CPUs, %s: %q, want %q", c.cpu, c.memory, got, c.want)
		}
	}
}
