// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// A View is what informers show at a moment: the objects of each resource by "namespace/name". What a controller decides is to be right
// by what it could see, which may be long past.
type View map[schema.GroupVersionResource]map[string]runtime.Object

// recent is for how long views are kept: longer than a sync takes, with all its writes.
const recent = 3 * time.Second

type seen struct {
	at   time.Time
	view View
}

// show has the views show something else from now on.
func (w *World) show(gvr schema.GroupVersionResource, change func(objects map[string]runtime.Object)) {
	next := View{}
	if len(w.views) > 0 {
		next = maps.Clone(w.views[len(w.views)-1].view)
	}
	objects := maps.Clone(next[gvr])
	if objects == nil {
		objects = map[string]runtime.Object{}
	}
	change(objects)
	next[gvr] = objects
	now := w.clock.Now()
	for len(w.views) > 1 && now.Sub(w.views[1].at) > recent {
		w.views = w.views[1:]
	}
	w.views = append(w.views, seen{now, next})
}

func place(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return m.GetNamespace() + "/" + m.GetName()
}

// heard has the views show an event that an informer has been told of.
func (w *World) heard(gvr schema.GroupVersionResource, e watch.Event) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.show(gvr, func(objects map[string]runtime.Object) {
		if e.Type == watch.Deleted {
			delete(objects, place(e.Object))
		} else {
			objects[place(e.Object)] = e.Object
		}
	})
}

// listed has the views show a list, with the lock held.
func (w *World) listed(gvr schema.GroupVersionResource, list runtime.Object) {
	w.show(gvr, func(objects map[string]runtime.Object) {
		clear(objects)
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			objects[place(o)] = o.DeepCopyObject()
			return nil
		})
	})
}

// Seen tells whether a controller that writes now could have seen what makes it right: holds says what is wrong with a view. Nothing: it
// holds in a view of the last moments.
func (w *World) Seen(holds func(View) string) (wrong string) {
	for i := len(w.views) - 1; i >= 0; i-- {
		why := holds(w.views[i].view)
		if why == "" {
			return ""
		}
		if wrong == "" {
			wrong = why
		}
	}
	return wrong
}

// ByController tells whether the change that is being checked was made by a controller, not by a user, a node or the collector.
func (w *World) ByController() bool { return w.checked.byController }

// Pause lets time pass: none, or some, or as much as that.
func (w *World) Pause(what string, longest time.Duration) { <-w.clock.After(w.span(what, longest)) }

var budgetsResource = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")

// Evict asks for a pod to go as the eviction API does, and tells whether it may.
func (w *World) Evict(namespace, name string) bool {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	obj, err := w.api.tracker.Get(podsResource, namespace, name)
	if err != nil {
		return false
	}
	pod := obj.(*corev1.Pod)
	if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	spent := true
	for _, o := range w.allLocked(budgetsResource, policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget")) {
		budget := o.(*policyv1.PodDisruptionBudget)
		if s, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector); err != nil || !s.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if s := budget.Status; s.ObservedGeneration < budget.Generation || s.DisruptionsAllowed <= 0 {
			return false
		}
		spent = false
		w.changeLocked(budgetsResource, namespace, budget.Name, "status", func(o runtime.Object) {
			s := &o.(*policyv1.PodDisruptionBudget).Status
			s.DisruptionsAllowed--
			if s.DisruptedPods == nil {
				s.DisruptedPods = map[string]metav1.Time{}
			}
			s.DisruptedPods[name] = metav1.NewTime(w.clock.Now())
			spent = true
		})
	}
	if spent {
		w.sayLocked("evict " + name)
		_ = w.api.remove(podsResource, namespace, name) // it was there a moment ago
	}
	w.settled()
	return spent
}
