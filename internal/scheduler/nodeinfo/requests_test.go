// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestRequests holds the sum of plain pods against upstream's library, for random pods, plain and not.
func TestRequests(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	amounts := []string{"0", "1", "1m", "100m", "1500m", "100u", "1", "2.5", "1Ki", "500Mi", "1e3", "0.5", "12345678901"}
	list := func() corev1.ResourceList {
		l := corev1.ResourceList{}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, "example.com/gpu",
			"hugepages-2Mi", corev1.ResourcePods} {
			if random.IntN(3) > 0 {
				l[name] = resource.MustParse(amounts[random.IntN(len(amounts))])
			}
		}
		return l
	}
	always := corev1.ContainerRestartPolicyAlways
	summed := 0
	for range 5000 {
		pod := &corev1.Pod{}
		for i := range random.IntN(4) {
			pod.Spec.Containers = append(pod.Spec.Containers,
				corev1.Container{Name: string(rune('a' + i)), Resources: corev1.ResourceRequirements{Requests: list()}})
		}
		switch random.IntN(8) {
		case 0:
			pod.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: corev1.ResourceRequirements{Requests: list()}}}
		case 1:
			pod.Spec.InitContainers = []corev1.Container{{Name: "beside", RestartPolicy: &always,
				Resources: corev1.ResourceRequirements{Requests: list()}}}
		case 2:
			pod.Spec.Overhead = list()
		case 3:
			pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list()}
		case 4:
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", AllocatedResources: list(),
				Resources: &corev1.ResourceRequirements{Requests: list()}}}
		}
		if plain(pod) {
			if _, _, _, ok := sum(pod.Spec.Containers); ok {
				summed++
			}
		}
		exact, cpu, memory := Requests(pod)
		wantExact, wantCPU, wantMemory := requests(pod)
		if diff := cmp.Diff(wantExact, exact); diff != "" || cpu != wantCPU || memory != wantMemory {
			t.Fatalf("requests of %+v (want -, got +): %s\ncpu %d, want %d; memory %d, want %d", pod, diff, cpu, wantCPU, memory, wantMemory)
		}
	}
	if summed < 500 {
		t.Errorf("only %d pods were added up", summed)
	}
}

// BenchmarkRequests is a pod of one container, as most are, beside upstream's library.
func BenchmarkRequests(b *testing.B) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("500Mi"),
		}}}}}}
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			Requests(pod)
		}
	})
	b.Run("library", func(b *testing.B) {
		for b.Loop() {
			requests(pod)
		}
	})
}
