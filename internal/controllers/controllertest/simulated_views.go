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

// A View is what the informers show at one moment: the objects of each resource by "namespace/name". A controller's decision has to be
// right by what it could see, which may be long past.
type View map[schema.GroupVersionResource]map[string]runtime.Object

// recent is how long a view is kept: longer than a sync takes, with all its writes.
const recent = 3 * time.Second

type seen struct {
	at   time.Time
	view View
}

// show records a new view, which change alters.
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

func objectName(o runtime.Object) string {
	m, err := meta.Accessor(o)
	if err != nil {
		return ""
	}
	return m.GetNamespace() + "/" + m.GetName()
}

// heard records a view with an event that an informer has received.
func (w *World) heard(gvr schema.GroupVersionResource, e watch.Event) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.show(gvr, func(objects map[string]runtime.Object) {
		if e.Type == watch.Deleted {
			delete(objects, objectName(e.Object))
		} else {
			objects[objectName(e.Object)] = e.Object
		}
	})
}

// listed records a view with a list, with the lock held.
func (w *World) listed(gvr schema.GroupVersionResource, list runtime.Object) {
	w.show(gvr, func(objects map[string]runtime.Object) {
		clear(objects)
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			objects[objectName(o)] = o.DeepCopyObject()
			return nil
		})
	})
}

// Seen reports whether a controller that writes now could have seen a view that makes the write right: holds returns what is wrong with a
// view. Seen returns "" if holds accepts one of the recent views.
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

// ByController reports whether a controller made the change that is being checked, rather than a user, a node or the collector.
func (w *World) ByController() bool { return w.checked.byController }

// Pause lets time pass: none, some, or up to longest.
func (w *World) Pause(what string, longest time.Duration) { <-w.clock.After(w.span(what, longest)) }

var budgetsResource = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")

// Evict deletes a pod as the eviction API does, and reports whether its budgets allow that.
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
		_ = w.api.remove(podsResource, namespace, name) // it existed a moment ago
	}
	w.settled()
	return spent
}
