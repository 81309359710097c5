// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// usualPod is a valid pod of a template.
func usualPod(name string) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", UID: types.UID("u-" + name), CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": "web"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
				Time: &metav1.Time{Time: time.Now()}, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`)}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}},
			Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	Default(pod)
	return pod
}

// TestAlikePods compares the errors of pods that are like others with those of a check that knows none.
func TestAlikePods(t *testing.T) {
	known, asks := Pod().Create, 0
	changes := []func(*corev1.Pod){
		func(*corev1.Pod) {},
		func(p *corev1.Pod) { p.Name = strings.ToUpper(p.Name) },
		func(p *corev1.Pod) { p.Name = "" },
		func(p *corev1.Pod) { p.Labels["a/b/c"] = "d" },
		func(p *corev1.Pod) { p.GenerateName = "-x" },
		func(p *corev1.Pod) { p.Spec.Containers[0].Ports[0].ContainerPort = 0 },
		func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "w", MountPath: "/w"}}
		},
		func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		},
		func(p *corev1.Pod) { p.ManagedFields[0].Operation = "Other" },
		func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "K", Name: "n"}}
		},
		func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(-1)) },
	}
	random := rand.New(rand.NewSource(1))
	for i := range 200 {
		pod := usualPod(fmt.Sprint("n-", i))
		for range random.Intn(3) {
			changes[random.Intn(len(changes))](pod)
		}
		want := Pod().Create(t.Context(), pod.DeepCopy())
		if got := known(t.Context(), pod); got.ToAggregate() != nil != (want.ToAggregate() != nil) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("pod %d: %v, want %v", i, got, want)
		}
		if len(want) == 0 {
			asks++
		}
	}
	if asks < 20 {
		t.Errorf("%d pods were valid", asks)
	}
}

// TestAlikePodsAreNotValidated shows that a pod like a valid one takes little, and that the memory is bounded.
func TestAlikePodsAreNotValidated(t *testing.T) {
	check := Pod().Create
	if errs := check(t.Context(), usualPod("a")); len(errs) > 0 {
		t.Fatal(errs)
	}
	pod := usualPod("b")
	if n := testing.AllocsPerRun(100, func() { check(t.Context(), pod) }); n > 10 {
		t.Errorf("%.0f allocations", n)
	}
	var a alikePods
	for i := range 1000 {
		a.put([]byte(strings.Repeat("x", 4096) + fmt.Sprint(i)))
	}
	if n := len(a.young) + len(a.aged); n > 2*alikeBytes/4096 {
		t.Errorf("%d pods", n)
	}
}
