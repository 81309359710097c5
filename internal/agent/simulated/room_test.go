// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestRoom(t *testing.T) {
	pod := func(name, cpu string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
		}}}}
	}
	size := corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("3")}
	var r room
	for _, c := range []struct {
		pod             *corev1.Pod
		reason, message string
	}{
		{pod("a", "3"), "", ""},
		{pod("a", "3"), "", ""}, // it is there already
		{pod("b", "2"), "OutOfcpu", "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"},
		{pod("c", "1"), "", ""},
		{pod("d", "0"), "", ""},
		{pod("e", "0"), "OutOfpods", "Pod was rejected: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
	} {
		reason, message := "", ""
		if reject := r.take(c.pod, size); reject != nil {
			reason, message = reject.Reason, reject.StatusMessage()
		}
		if reason != c.reason || message != c.message {
			t.Errorf("pod %s: %q %q, want %q %q", c.pod.UID, reason, message, c.reason, c.message)
		}
	}
	r.release("a")
	if reject := r.take(pod("b", "2"), size); reject != nil {
		t.Errorf("pod b is refused after room was made: %v", reject)
	}
	begun := pod("f", "8")
	begun.Status.StartTime = &metav1.Time{}
	if reject := r.take(begun, size); reject != nil {
		t.Errorf("a pod that has begun is refused: %v", reject)
	}
}
