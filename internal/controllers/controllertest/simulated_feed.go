// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// Event is one change of an object.
type Event = watch.Event

// feed receives each change, with the lock held.
func (w *World) feed(gvr schema.GroupVersionResource, kind watch.EventType, obj runtime.Object) {
	if gvr.Resource == "events" {
		return
	}
	o, err := meta.Accessor(obj)
	if err != nil {
		return
	}
	version, err := strconv.Atoi(o.GetResourceVersion())
	if err != nil {
		return
	}
	w.log = append(w.log, change{gvr, version, Event{Type: kind, Object: obj}, w.acting})
	close(w.grown)
	w.grown = make(chan struct{})
	if pod, ok := obj.(*corev1.Pod); ok {
		w.node(kind, pod)
	}
	w.collect(kind, o)
	w.sayLocked(fmt.Sprintf("    %s %s %s", strings.ToLower(string(kind)), gvr.Resource, o.GetName()))
	w.due = append(w.due, w.log[len(w.log)-1])
}

// settled checks the change once the tracker shows it.
func (w *World) settled() {
	w.acting = false
	for len(w.due) > 0 && !w.over {
		next := w.due[0]
		w.due = w.due[1:]
		w.checked = next
		if wrong := w.check(w, next.event); wrong != "" {
			w.failLocked(wrong)
		}
	}
}

// later runs do after d, with the lock held, unless the simulation has ended.
func (w *World) later(d time.Duration, do func()) {
	time.AfterFunc(w.alone(d, "later"), func() {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		if !w.over {
			do()
			w.settled()
		}
	})
}

// node acts on a pod as a kubelet does.
func (w *World) node(kind watch.EventType, pod *corev1.Pod) {
	gvr, name := podsResource, pod.Name
	switch {
	case kind == watch.Added && pod.DeletionTimestamp == nil && pod.Spec.NodeName == "":
		w.later(w.spanLocked("bind "+name, 2*time.Second), func() {
			w.changeLocked(gvr, pod.Namespace, name, "", func(o runtime.Object) {
				if p := o.(*corev1.Pod); p.UID == pod.UID {
					p.Spec.NodeName = pinned(p)
				}
			})
			w.later(10*time.Millisecond+w.spanLocked("start "+name, 4*time.Second), func() { w.phase(pod, corev1.PodRunning) })
			if ref := metav1.GetControllerOf(pod); ref != nil && ref.Kind == "Job" {
				end := corev1.PodSucceeded
				if w.roll(10, "end "+name) == 0 {
					end = corev1.PodFailed
				}
				w.later(5*time.Second+w.spanLocked("work "+name, 5*time.Second), func() { w.phase(pod, end) })
			}
		})
	case kind == watch.Modified && pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" && !w.api.stopped[pod.UID]:
		w.later(w.spanLocked("stop "+name, 4*time.Second), func() {
			now, err := w.api.tracker.Get(gvr, pod.Namespace, name)
			if p, ok := now.(*corev1.Pod); err != nil || !ok || p.UID != pod.UID || w.api.stopped[pod.UID] {
				return
			}
			w.phase(pod, corev1.PodFailed) // the node stops its containers
			w.api.stopped[pod.UID] = true
			_ = w.api.remove(gvr, pod.Namespace, name) // unless a finalizer holds it
		})
	}
}

// pinned returns the node that a pod is made for, or one of two.
func pinned(p *corev1.Pod) string {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
	}
	return "n1"
}

// phase advances a pod's phase, never back.
func (w *World) phase(pod *corev1.Pod, phase corev1.PodPhase) {
	w.changeLocked(podsResource, pod.Namespace, pod.Name, "status", func(o runtime.Object) {
		p := o.(*corev1.Pod)
		if p.UID != pod.UID || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			return
		}
		if phase == corev1.PodRunning && p.DeletionTimestamp != nil {
			return
		}
		p.Status.Phase = phase
		p.Status.Conditions = nil
		if phase == corev1.PodRunning {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.clock.Now())}}
		}
	})
}

// collected are the resources whose objects have owners, or are owners.
var collected = []schema.GroupVersionResource{
	podsResource, {Group: "apps", Version: "v1", Resource: "replicasets"}, {Group: "apps", Version: "v1", Resource: "controllerrevisions"},
	{Group: "batch", Version: "v1", Resource: "jobs"},
}

// collect deletes objects whose owner is gone.
func (w *World) collect(kind watch.EventType, o metav1.Object) {
	if w.gone == nil {
		w.gone = map[types.UID]bool{}
	}
	if kind == watch.Deleted {
		uid := o.GetUID()
		w.gone[uid] = true
		w.later(w.spanLocked("collect "+string(uid), 4*time.Second), w.sweep)
		return
	}
	if ref := metav1.GetControllerOf(o); ref != nil && kind == watch.Added && w.gone[ref.UID] {
		w.later(time.Second, w.sweep)
	}
}

func (w *World) sweep() {
	for _, gvr := range collected {
		for gvk := range scheme.Scheme.AllKnownTypes() {
			if guess, _ := meta.UnsafeGuessKindToResource(gvk); guess != gvr || strings.HasSuffix(gvk.Kind, "List") {
				continue
			}
			for _, obj := range w.allLocked(gvr, gvk) {
				o, err := meta.Accessor(obj)
				if err != nil {
					continue
				}
				if ref := metav1.GetControllerOf(o); ref != nil && w.gone[ref.UID] && o.GetDeletionTimestamp() == nil {
					_ = w.api.remove(gvr, o.GetNamespace(), o.GetName())
				}
			}
		}
	}
}

func (w *World) get(action clienttesting.Action) (bool, runtime.Object, error) {
	g, ok := action.(clienttesting.GetActionImpl)
	if !ok {
		return false, nil, nil
	}
	if !w.wait("get "+g.GetResource().Resource+" "+g.GetName(), 200*time.Millisecond) {
		return true, nil, context.Canceled
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	obj, err := w.api.tracker.Get(g.GetResource(), g.GetNamespace(), g.GetName())
	if err != nil {
		return true, nil, err
	}
	return true, obj.DeepCopyObject(), nil
}

// again waits until an informer whose watch has lost its place would list again. The informer chooses that pause: 0.8 to 1.6 seconds, then
// twice as long.
func (w *World) again(gvr schema.GroupVersionResource) {
	w.api.mu.Lock()
	ended, ok := w.ended[gvr]
	delete(w.ended, gvr)
	life := w.life
	w.api.mu.Unlock()
	if !ok {
		return
	}
	until := 1600 * time.Millisecond
	for until < time.Minute && w.clock.Since(ended) >= until {
		until *= 2
	}
	w.sleep(life, ended.Add(until).Sub(w.clock.Now()))
}

// list returns all objects, at the current version.
func (w *World) list(action clienttesting.Action) (bool, runtime.Object, error) {
	l, ok := action.(clienttesting.ListActionImpl)
	if !ok {
		return false, nil, nil
	}
	w.again(l.GetResource())
	if !w.wait("list "+l.GetResource().Resource, 200*time.Millisecond) {
		return true, nil, context.Canceled
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	list, err := w.api.tracker.List(l.GetResource(), l.GetKind(), l.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	list = list.DeepCopyObject()
	m, err := meta.ListAccessor(list)
	if err == nil {
		m.SetResourceVersion(strconv.Itoa(w.api.counter))
	}
	w.listed(l.GetResource(), list)
	return true, list, err
}

// watching is a watch that delivers events late and twice, and ends at random.
type watching struct {
	events chan watch.Event
	done   chan struct{}
	stop   sync.Once
}

func (w *watching) Stop()                          { w.stop.Do(func() { close(w.done) }) }
func (w *watching) ResultChan() <-chan watch.Event { return w.events }

func (w *World) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	from := 0
	if a, ok := action.(clienttesting.WatchActionImpl); ok {
		from, _ = strconv.Atoi(a.ListOptions.ResourceVersion)
	}
	out := &watching{events: make(chan watch.Event), done: make(chan struct{})}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	go w.tell(w.life, out, action.GetResource(), from)
	return true, out, nil
}

func (w *World) tell(life context.Context, out *watching, gvr schema.GroupVersionResource, from int) {
	defer close(out.events)
	send := func(e watch.Event) bool {
		select {
		case out.events <- e:
			if e.Type != watch.Error {
				w.heard(gvr, e)
			}
			return true
		case <-out.done:
			return false
		}
	}
	for at := 0; ; {
		w.api.mu.Lock()
		if life.Err() != nil {
			w.api.mu.Unlock()
			return
		}
		for at < len(w.log) && (w.log[at].resource != gvr || w.log[at].version <= from) {
			at++
		}
		if at == len(w.log) {
			grown := w.grown
			w.api.mu.Unlock()
			select {
			case <-grown:
				continue
			case <-out.done:
				return
			}
		}
		next := w.log[at]
		at++
		what := fmt.Sprintf("tell %s %d", gvr.Resource, at)
		wait, luck := w.spanLocked(what, 4*time.Second), w.roll(100, what)
		w.api.mu.Unlock()
		select {
		case <-w.clock.After(wait):
		case <-out.done:
			return
		}
		event := watch.Event{Type: next.event.Type, Object: next.event.Object.DeepCopyObject()}
		switch {
		case luck == 0: // the watch ends and is resumed, unless it has just begun
			w.lost(gvr)
			return
		case luck == 1: // the watch loses its place: the informer lists again
			w.lost(gvr)
			send(watch.Event{Type: watch.Error, Object: &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410,
				Message: "too old"}})
			return
		}
		if !send(event) {
			return
		}
		if luck < 10 && event.Type == watch.Modified {
			<-w.clock.After(w.span("again "+what, 0))
			if !send(watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}) {
				return
			}
		}
	}
}

func (w *World) lost(gvr schema.GroupVersionResource) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.ended[gvr] = w.clock.Now()
}
