// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	testclock "k8s.io/utils/clock/testing"
)

// TestSharedLoad has the pods of one controller share its CPU usage from the moment at which one starts or is gone.
func TestSharedLoad(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := testclock.NewFakeClock(begun)
	pods, err := newPodCache(informers.NewSharedInformerFactory(fake.NewClientset(), 0).Core().V1().Pods())
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{o: Options{Phases: Phases{
		SharesCPU: true, Usage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
	}}, clock: clock, started: begun, pods: pods}
	n := &node{name: "one"}
	f.nodes.by, f.nodes.address = map[string]*node{}, map[netip.Addr]*node{}
	f.nodes.set("one", n)
	add := func(name, controller string) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{NodeName: "one"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "a", ContainerID: name,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(clock.Now())}}}}},
		}
		if controller != "" {
			p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(controller), Controller: new(true)}}
		}
		if err := pods.index.Add(p); err != nil {
			t.Fatal(err)
		}
		f.shareAgain(p)
		return p
	}
	uses := func(what string, want map[string]time.Duration) {
		t.Helper()
		for _, c := range (view{f, n}).containers() {
			if got := time.Duration(c.CPUNanoseconds); got != want[c.Target.Pod] {
				t.Errorf("%s: %s has used %s, want %s", what, c.Target.Pod, got, want[c.Target.Pod])
			}
		}
	}
	add("first", "web")
	add("single", "")
	add("other", "db")
	uses("at the start", map[string]time.Duration{})
	clock.Step(10 * time.Second)
	second := add("second", "web")
	clock.Step(10 * time.Second)
	uses("two", map[string]time.Duration{
		"first": 15 * time.Second, "second": 5 * time.Second, "single": 20 * time.Second, "other": 20 * time.Second,
	})
	if err := pods.index.Delete(second); err != nil {
		t.Fatal(err)
	}
	f.shareAgain(second)
	clock.Step(10 * time.Second)
	uses("one again", map[string]time.Duration{"first": 25 * time.Second, "single": 30 * time.Second, "other": 30 * time.Second})
}
