// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
)

func onePod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
}

// TestWhatEndsAPodWaitsForItsStatus: a pod that is over is ended by what was written of it, whatever else is to be started.
func TestWhatEndsAPodWaitsForItsStatus(t *testing.T) {
	ephemeral, regular := []*corev1.EphemeralContainer{{}}, []*corev1.Container{{}}
	for name, c := range map[string]struct {
		act  decide.Action
		want bool
	}{
		"nothing":                          {decide.Action{}, false},
		"a sandbox":                        {decide.Action{KillPod: true, CreateSandbox: true}, true},
		"a container":                      {decide.Action{Start: regular}, true},
		"one to look around":               {decide.Action{Ephemeral: ephemeral}, true},
		"over":                             {decide.Action{KillPod: true, Done: true}, false},
		"over, with one that came at last": {decide.Action{KillPod: true, Done: true, Ephemeral: ephemeral}, false},
	} {
		if got := startsSomething(c.act); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestOwnStatusWakesNobody: what comes back of a status that the node has made is no news, and all else is.
func TestOwnStatusWakesNobody(t *testing.T) {
	started := metav1.NewTime(time.Date(2026, 11, 22, 1, 2, 3, 456, time.UTC))
	whole := started.Rfc3339Copy()
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	theirs := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionFalse}
	made := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{ready}}
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		news   bool
	}{
		"its own status":     {func(*corev1.Pod) {}, false},
		"in another order":   {func(p *corev1.Pod) { slices.Reverse(p.Status.Conditions) }, false},
		"another's field":    {func(p *corev1.Pod) { p.Status.NominatedNodeName = "n2" }, true},
		"another phase":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, true},
		"not ready":          {func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }, true},
		"a gate that opened": {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, true},
		"a condition gone":   {func(p *corev1.Pod) { p.Status.Conditions = p.Status.Conditions[1:] }, true},
		"a label":            {func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, true},
		"an annotation":      {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		"a generation":       {func(p *corev1.Pod) { p.Generation++ }, true},
		"another image":      {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "other" }, true},
		"its end": {func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &whole, new(int64(30))
		}, true},
	} {
		old := onePod("p")
		old.UID, old.ResourceVersion = "uid", "5"
		old.Status.Conditions = []corev1.PodCondition{theirs}
		w := &worker{uid: old.UID, wakes: make(chan struct{}, 1), entry: entry{spec: old, status: &made}}
		m := &Manager{podTable: newPodTable(nil, nil), Dependencies: Dependencies{Resizes: podresize.New(podresize.Config{})}}
		m.workers[old.UID] = w
		w.m = m
		pod := old.DeepCopy()
		pod.ResourceVersion = "6"
		pod.Status = *made.DeepCopy()
		pod.Status.StartTime = &whole
		pod.Status.Conditions = []corev1.PodCondition{theirs, ready}
		c.change(pod)
		m.SetPod(pod)
		if news := len(w.wakes) == 1; news != c.news {
			t.Errorf("%s: the worker is woken: %v, want %v", name, news, c.news)
		}
		if w.spec != pod {
			t.Errorf("%s: the definition is not kept", name)
		}
	}
}
