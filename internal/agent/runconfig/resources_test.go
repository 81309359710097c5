// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(words ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(words); i += 2 {
		out[corev1.ResourceName(words[i])] = resource.MustParse(words[i+1])
	}
	return out
}

func bounded(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

// The bounds of a pod's own cgroup are those of kubelet's ResourceConfigForPod.
func TestPodResources(t *testing.T) {
	same := list("cpu", "1", "memory", "1Gi")
	for name, want := range map[string]struct {
		spec corev1.PodSpec
		node Node
		pod  PodResources
	}{
		"best effort": {spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}, pod: PodResources{Shares: 2}},
		"guaranteed": {spec: corev1.PodSpec{Containers: []corev1.Container{bounded(same, same), bounded(same, same)}},
			pod: PodResources{Shares: 2048, Quota: 200000, Period: 100000, Memory: 2 << 30}},
		"burstable, one without limits": {
			spec: corev1.PodSpec{Containers: []corev1.Container{bounded(list("cpu", "500m"), list("cpu", "1", "memory", "1Gi")),
				bounded(list("cpu", "250m"), nil)}},
			pod: PodResources{Shares: 768},
		},
		"burstable, memory limited": {
			spec: corev1.PodSpec{Containers: []corev1.Container{bounded(list("cpu", "500m"), list("memory", "1Gi")),
				bounded(nil, list("memory", "1Gi"))}},
			pod: PodResources{Shares: 512, Memory: 2 << 30},
		},
		"an init container without limits": {
			spec: corev1.PodSpec{InitContainers: []corev1.Container{bounded(list("cpu", "2"), nil)},
				Containers: []corev1.Container{bounded(same, same)}},
			pod: PodResources{Shares: 2048},
		},
		"overhead": {
			spec: corev1.PodSpec{Overhead: list("cpu", "250m", "memory", "64Mi"), Containers: []corev1.Container{bounded(same, same)}},
			pod:  PodResources{Shares: 1280, Quota: 125000, Period: 100000, Memory: 1<<30 + 64<<20},
		},
		"the pod's own": {
			spec: corev1.PodSpec{
				Resources:  &corev1.ResourceRequirements{Requests: list("cpu", "1"), Limits: list("cpu", "2", "memory", "2Gi")},
				Containers: []corev1.Container{bounded(list("cpu", "100m"), nil), {Name: "d"}},
			},
			pod: PodResources{Shares: 1024, Quota: 200000, Period: 100000, Memory: 2 << 30},
		},
		"huge pages": {
			spec: corev1.PodSpec{Containers: []corev1.Container{bounded(list("cpu", "1", "hugepages-2Mi", "4Mi"), list("hugepages-2Mi", "4Mi"))}},
			pod:  PodResources{Shares: 1024, HugePages: map[int64]int64{2 << 20: 4 << 20}},
		},
		"no quotas": {
			node: Node{NoQuota: true}, spec: corev1.PodSpec{Containers: []corev1.Container{bounded(same, same)}},
			pod: PodResources{Shares: 1024, Quota: -1, Period: 100000, Memory: 1 << 30},
		},
		"another period": {
			node: Node{QuotaPeriod: 10 * time.Millisecond}, spec: corev1.PodSpec{Containers: []corev1.Container{bounded(same, same)}},
			pod: PodResources{Shares: 1024, Quota: 10000, Period: 10000, Memory: 1 << 30},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if want.pod.HugePages == nil {
				want.pod.HugePages = map[int64]int64{}
			}
			if diff := cmp.Diff(want.pod, want.node.Pod(&corev1.Pod{Spec: want.spec})); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOOMScore(t *testing.T) {
	n := Node{MemoryBytes: 10 << 30, LowestOOMScore: -1000}
	sidecar := bounded(list("memory", "1Gi"), nil)
	sidecar.Name, sidecar.RestartPolicy = "s", new(corev1.ContainerRestartPolicyAlways)
	pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{sidecar},
		Containers: []corev1.Container{bounded(list("memory", "2Gi"), nil)}}}
	if got := n.oomScore(pod, &pod.Spec.InitContainers[0]); got != 800 {
		t.Errorf("a sidecar beside a larger container: %d", got)
	}
	pod.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory", "5Gi")}
	if got := n.oomScore(pod, &pod.Spec.Containers[0]); got != 700 {
		t.Errorf("with a half of what the pod has beyond its containers: %d", got)
	}
	pod.Spec.PriorityClassName, pod.Spec.Priority = "system-node-critical", new(int32(2_000_001_000))
	if got := n.oomScore(pod, &pod.Spec.Containers[0]); got != -997 {
		t.Errorf("a critical pod: %d", got)
	}
}

func TestPageUnit(t *testing.T) {
	for size, want := range map[int64]string{64 << 10: "64KB", 2 << 20: "2MB", 1 << 30: "1GB", 16 << 30: "16GB"} {
		if got := PageUnit(size); got != want {
			t.Errorf("%d: %s, not %s", size, got, want)
		}
	}
}
