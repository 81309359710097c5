// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestEndIsShownWhenNothingIsHeld: the scheduler gives what an ended pod had to the next pod at once, and the node has to accept that.
func TestEndIsShownWhenNothingIsHeld(t *testing.T) {
	asks := func(name string) *corev1.Pod {
		return pod(name, func(p *corev1.Pod) {
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Annotations = map[string]string{AnnotationRunFor: "1s"}
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("30")}
		})
	}
	client := fake.NewClientset()
	var nodes *fleet
	shown := 0
	client.PrependReactor("update", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		p := action.(clienttesting.UpdateAction).GetObject().(*corev1.Pod)
		if p.Status.Phase != corev1.PodSucceeded {
			return false, nil, nil
		}
		shown++
		n := nodes.nodes.get("simulated-0")
		if reject := n.room.take(asks("second"), n.size); reject != nil {
			t.Errorf("when the end is shown, the node refuses the next pod: %v", reject)
		}
		return false, nil, nil
	})
	inBubble(t, Options{Client: client}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		nodes = f
		create(t, c, asks("first"))
		pass(time.Minute)
		if p := read(t, c, "first"); p.Status.Phase != corev1.PodSucceeded || shown == 0 {
			t.Errorf("%s, its end was written %d times", sum(p), shown)
		}
	})
}
