// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// PodEvents translates pod events for a controller whose objects own pods: a pod fulfils an expectation, an owner has to sync, or there is
// an orphan that an owner may adopt.
type PodEvents struct {
	// Owned reports whether the pod's controller is one of the controller's objects and exists.
	Owned func(pod *corev1.Pod) bool
	// Orphan is called with each pod without a controller that was added, or whose labels or controller changed.
	Orphan func(pod *corev1.Pod)
	// Wake enqueues an owner.
	Wake func(owner types.NamespacedName)
	// Soon enqueues an owner after a delay, for controllers with expensive syncs; nil: like Wake. An event that fulfils the last
	// expectation enqueues the owner immediately.
	Soon func(owner types.NamespacedName)

	Expectations *Expectations
}

// Subscribe delivers pod events to e, and indexes the pods for ByController.
func (e PodEvents) Subscribe(d *controllers.Deps, pods cache.SharedIndexInformer) error {
	return errors.Join(IndexByController(pods),
		controllers.Subscribe(d, pods, controllers.Handler[*corev1.Pod]{Add: e.added, Update: e.updated, Delete: e.gone}))
}

// wake enqueues the owner that ref names, if it exists; observe, if set, reports whether the event fulfils the owner's last expectation.
func (e PodEvents) wake(pod *corev1.Pod, ref *metav1.OwnerReference, observe func(owner types.NamespacedName) bool) {
	if ref == nil || !e.Owned(pod) {
		return
	}
	owner := types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}
	awaited := observe != nil && observe(owner)
	if awaited || e.Soon == nil {
		e.Wake(owner)
		return
	}
	e.Soon(owner)
}

func (e PodEvents) added(pod *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		e.gone(pod) // its deletion began before this controller saw it
	case ref == nil:
		e.Orphan(pod)
	default:
		e.wake(pod, ref, e.Expectations.CreationObserved)
	}
}

func (e PodEvents) updated(before, current *corev1.Pod) {
	was, is := metav1.GetControllerOfNoCopy(before), metav1.GetControllerOfNoCopy(current)
	moved := was != nil && (is == nil || is.UID != was.UID)
	if moved {
		e.wake(before, was, nil)
	}
	switch {
	case current.DeletionTimestamp != nil:
		e.gone(current) // the replacement is due now, not only when the node has stopped the pod
	case is != nil:
		e.wake(current, is, nil)
	case moved || !maps.Equal(before.Labels, current.Labels):
		e.Orphan(current)
	}
}

func (e PodEvents) gone(pod *corev1.Pod) {
	e.wake(pod, metav1.GetControllerOfNoCopy(pod), func(owner types.NamespacedName) bool {
		return e.Expectations.DeletionObserved(owner, pod.UID)
	})
}

// Selects reports whether selector, which must not be empty, matches the pod.
func Selects(selector *metav1.LabelSelector, pod *corev1.Pod) bool {
	if len(pod.Labels) == 0 {
		return false
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(pod.Labels))
}
