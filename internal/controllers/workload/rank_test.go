// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

type trait func(*corev1.Pod)

func pod(name string, traits ...trait) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(epoch)}}
	p.Spec.NodeName = "n1"
	p.Status.Phase = corev1.PodRunning
	for _, t := range append([]trait{readyFor(time.Hour)}, traits...) {
		t(p)
	}
	return p
}

func readyFor(d time.Duration) trait {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(epoch.Add(time.Hour).Add(-d))}}
	}
}

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func TestVictims(t *testing.T) {
	pods := []*corev1.Pod{
		pod("solid"),
		pod("restarted", func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} }),
		pod("fresh", readyFor(time.Second)),
		pod("crowded", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }),
		pod("cheap", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.PodDeletionCost: "-1"} }),
		pod("unready", unready),
		pod("pending", unready, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		pod("unbound", unready, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending }),
	}
	neighbours := slices.Clone(pods)
	for range 9 {
		neighbours = append(neighbours, pod("sibling", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }))
	}
	want := "unbound pending unready cheap crowded fresh restarted"
	for range 5 {
		slices.Reverse(pods)
		pods = append(pods[3:], pods[:3]...)
		var got []string
		for _, p := range Victims(pods, neighbours, 7, epoch.Add(time.Hour)) {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != want {
			t.Fatalf("got %v, want %s", got, want)
		}
	}
}

func TestAvailable(t *testing.T) {
	p := pod("p", readyFor(4*time.Second))
	if ok, wait := Available(p, 10, epoch.Add(time.Hour)); ok || wait != 6*time.Second {
		t.Errorf("ready for 4 s of 10: %v, %v", ok, wait)
	}
	if ok, _ := Available(p, 4, epoch.Add(time.Hour)); !ok {
		t.Error("ready for 4 s of 4: not available")
	}
	if ok, wait := Available(pod("q", unready), 10, epoch); ok || wait != 0 {
		t.Errorf("not ready: %v, %v", ok, wait)
	}
}

func TestExpectations(t *testing.T) {
	clock := clocktesting.NewFakeClock(epoch)
	e := NewExpectations(clock)
	key := types.NamespacedName{Namespace: "a", Name: "b"}
	expect := func(step string, want bool) {
		t.Helper()
		if ok, _ := e.Satisfied(key); ok != want {
			t.Errorf("%s: satisfied %v", step, ok)
		}
	}
	expect("at first", true)
	e.Expect(key, 2)
	e.CreationObserved(key)
	expect("one of two seen", false)
	e.CreationObserved(key)
	expect("both seen", true)
	e.Expect(key, 0, "x", "y")
	e.DeletionObserved(key, "x")
	e.DeletionObserved(key, "x")
	expect("one of two gone, told twice", false)
	e.DeletionObserved(key, "y")
	expect("both gone", true)
	e.Expect(key, 1)
	clock.Step(ExpectationsTimeout)
	expect("after the time-out", true)
}

func TestWrites(t *testing.T) {
	w := NewWrites()
	at := func(uid, version string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID(uid), ResourceVersion: version}}
	}
	w.Note(at("u", "10"))
	for _, c := range []struct {
		uid, version string
		want         bool
	}{{"u", "9", false}, {"other", "9", true}, {"u", "10", true}, {"u", "9", true}} {
		if got := w.Shown(at(c.uid, c.version)); got != c.want {
			t.Errorf("%s at %s: shown %v", c.uid, c.version, got)
		}
	}
}
