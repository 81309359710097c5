// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"runtime/debug"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Handler handles the events of one type of object. A nil function ignores its events.
type Handler[T metav1.Object] struct {
	Add    func(T)
	Update func(before, now T)
	Delete func(T) // gets the last known state, which may be older than the deleted one
}

// OnAny returns a handler that treats every event alike: f receives each object that was added, updated (its new state) or deleted.
func OnAny[T metav1.Object](f func(T)) Handler[T] {
	return Handler[T]{Add: f, Update: func(_, now T) { f(now) }, Delete: f}
}

// Subscribe delivers the informer's events to h until this incarnation of the controller ends. It drops updates that change nothing (equal
// resourceVersion). A panic in h ends the incarnation.
func Subscribe[T metav1.Object](d *Deps, informer cache.SharedIndexInformer, h Handler[T]) error {
	_, err := subscribe(d, informer, h)
	return err
}

// SubscribeWhileRunning is Subscribe for controllers whose Run has begun. It starts the informer if necessary, and returns a function that
// reports whether h has received the initial list.
func SubscribeWhileRunning[T metav1.Object](d *Deps, informer cache.SharedIndexInformer,
	h Handler[T]) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := subscribe(d, informer, h)
	if err == nil {
		d.start()
	}
	return registration, err
}

func subscribe[T metav1.Object](d *Deps, informer cache.SharedIndexInformer, h Handler[T]) (cache.ResourceEventHandlerRegistration, error) {
	guard := func() {
		if v := recover(); v != nil {
			d.scope.fail(panicError("handle event", v, debug.Stack()))
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			defer guard()
			if o, ok := obj.(T); ok && h.Add != nil {
				h.Add(o)
			}
		},
		UpdateFunc: func(before, now any) {
			defer guard()
			b, ok1 := before.(T)
			n, ok2 := now.(T)
			if ok1 && ok2 && h.Update != nil && (b.GetResourceVersion() != n.GetResourceVersion() || n.GetResourceVersion() == "") {
				h.Update(b, n)
			}
		},
		DeleteFunc: func(obj any) {
			defer guard()
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if o, ok := obj.(T); ok && h.Delete != nil {
				h.Delete(o)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.subscriptions = append(d.scope.subscriptions, subscription{informer, registration})
	return registration, nil
}

// SubscribeLate is Subscribe for informers whose initial list the incarnation must not wait for: those that its own Run starts, or whose
// resource may not be served.
func (d *Deps) SubscribeLate(informer cache.SharedIndexInformer, f func(metav1.Object)) error {
	late := *d
	late.scope = &scope{fail: d.scope.fail}
	err := Subscribe(&late, informer, OnAny(f))
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.late = append(d.scope.late, late.scope.subscriptions...)
	return err
}

// Index adds the named index to informer unless it is there. Controllers that start at the same time may add the same one.
func Index(informer cache.SharedIndexInformer, name string, f cache.IndexFunc) error {
	err := informer.AddIndexers(cache.Indexers{name: f})
	if err == nil {
		return nil
	}
	// Check with a method that takes the indexer's lock: GetIndexers returns the map itself.
	if _, missing := informer.GetIndexer().IndexKeys(name, ""); missing != nil {
		return fmt.Errorf("add index %s: %w", name, err)
	}
	return nil
}

// Key returns the queue key of an object.
func Key(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
