// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// assumed is an informer's objects, overlaid with decisions about some of them that the scheduler has not written yet, or whose events have
// not come yet. An assumption refers to one resource version, and ends with it.
type assumed[T metav1.Object] struct {
	resource schema.GroupResource
	objects  cache.Indexer

	mu   sync.RWMutex
	over map[string]T
}

func newAssumed[T metav1.Object](resource string, objects cache.Indexer) *assumed[T] {
	return &assumed[T]{resource: schema.GroupResource{Resource: resource}, objects: objects, over: map[string]T{}}
}

func key(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// told returns the informer's object.
func (a *assumed[T]) told(key string) (o T, err error) {
	stored, _, err := a.objects.GetByKey(key)
	if err != nil {
		return o, err
	}
	o, ok := stored.(T)
	if !ok {
		return o, apierrors.NewNotFound(a.resource, key)
	}
	return o, nil
}

// get returns the assumed object, or else the informer's.
func (a *assumed[T]) get(key string) (T, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	o, err := a.told(key)
	if err != nil {
		return o, err
	}
	return a.as(o), nil
}

func (a *assumed[T]) as(o T) T {
	if over, ok := a.over[key(o)]; ok && over.GetResourceVersion() == o.GetResourceVersion() {
		return over
	}
	return o
}

// indexed returns the objects of an index, with assumptions.
func (a *assumed[T]) indexed(index, value string) ([]T, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	found, err := a.objects.ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	all := make([]T, 0, len(found))
	for _, f := range found {
		if o, ok := f.(T); ok {
			all = append(all, a.as(o))
		}
	}
	return all, nil
}

// assume assumes the object. Its version must be that of the informer's object.
func (a *assumed[T]) assume(o T) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	stored, err := a.told(key(o))
	if err != nil {
		return err
	}
	if stored.GetResourceVersion() != o.GetResourceVersion() {
		return fmt.Errorf("%q is out of sync (stored: %s, assume: %s)", key(o), stored.GetResourceVersion(),
			o.GetResourceVersion()) // upstream's words
	}
	a.over[key(o)] = o
	return nil
}

// restore drops an assumption.
func (a *assumed[T]) restore(o T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if over, ok := a.over[key(o)]; ok && over.GetResourceVersion() == o.GetResourceVersion() {
		delete(a.over, key(o))
	}
}

// changed drops the assumption about an object that was updated or deleted.
func (a *assumed[T]) changed(obj any) {
	name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	over, ok := a.over[name]
	if !ok {
		return
	}
	if stored, err := a.told(name); err != nil || stored.GetResourceVersion() != over.GetResourceVersion() {
		delete(a.over, name)
	}
}
