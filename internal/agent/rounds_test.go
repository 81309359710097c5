// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/pleg"
)

// TestPodStartsWhileItsStatusIsWritten: the runtime is asked for a sandbox while the API server still writes that there is none.
func TestPodStartsWhileItsStatusIsWritten(t *testing.T) {
	c, r := newFake(t, nil)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	r.Fault("RunPodSandbox", func() error {
		once()
		return nil
	})
	first := sync.OnceFunc(func() {
		select {
		case <-asked:
		case <-time.After(20 * time.Second):
			t.Error("the sandbox waits for the status")
		}
	})
	c.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		first()
		return false, nil, nil
	})
	c.create(onePod("p"))
	pod := c.await("p", "ready", isReady)
	if pod.Status.StartTime == nil || len(pod.Status.PodIPs) == 0 {
		t.Errorf("status: %+v", pod.Status)
	}
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
		w := &worker{uid: old.UID, wakes: make(chan struct{}, 1), spec: old, status: &made}
		n := &node{podTable: newPodTable(nil, nil)}
		n.workers[old.UID] = w
		w.n = n
		pod := old.DeepCopy()
		pod.ResourceVersion = "6"
		pod.Status = *made.DeepCopy()
		pod.Status.StartTime = &whole
		pod.Status.Conditions = []corev1.PodCondition{theirs, ready}
		c.change(pod)
		n.SetPod(pod)
		if news := len(w.wakes) == 1; news != c.news {
			t.Errorf("%s: the worker is woken: %v, want %v", name, news, c.news)
		}
		if w.spec != pod {
			t.Errorf("%s: the definition is not kept", name)
		}
	}
}

// TestListSumsWhatWorkersSee: a list of all that the runtime has is no news to a worker that has seen the same, and is to one that has not.
func TestListSumsWhatWorkersSee(t *testing.T) {
	c, r := newFake(t, nil)
	made := c.create(onePod("p"))
	c.await("p", "ready", isReady)
	client, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	c.stop() // nobody starts anything again
	g := pleg.New(pleg.Config{Runtime: client})
	look := func() uint64 {
		t.Helper()
		list, err := g.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, err := client.Observe(t.Context(), made.UID)
		if err != nil {
			t.Fatal(err)
		}
		if list[made.UID] != pleg.Sum(seen) {
			t.Errorf("the list sums to %d, what a worker sees to %d", list[made.UID], pleg.Sum(seen))
		}
		return pleg.Sum(seen)
	}
	before := look()
	if !r.Exit("p", "c", 1) {
		t.Fatal("no container runs")
	}
	if look() == before {
		t.Error("an exit is not seen")
	}
}

// TestContainersGoOnWithoutTheirSources: what is mounted stays when what it came of is gone, and containers are started again; new pods
// wait.
func TestContainersGoOnWithoutTheirSources(t *testing.T) {
	c, r := newFake(t, nil)
	maps := c.client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conf"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reading := func(name string) *corev1.Pod {
		p := onePod(name)
		p.Spec.Volumes = []corev1.Volume{{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}}
		return p
	}
	c.create(reading("old"))
	c.await("old", "ready", isReady)
	if err := maps.Delete(t.Context(), "conf", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(reading("new"))
	c.awaitEvent("new", `FailedMount: MountVolume.SetUp failed for volume "conf" : configmap "conf" not found`)
	if !r.Exit("old", "c", 1) {
		t.Fatal("there is no container to end")
	}
	c.await("old", "running again", running(1))
	c.awaitEvent("old", `FailedMount: MountVolume.SetUp failed for volume "conf" : configmap "conf" not found`)
	if _, made := r.Made("new", "c"); made != nil {
		t.Error("a pod was begun without its volume")
	}
}
