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

// assumed is the objects of an informer, and over them what decisions have made of some that the API has not been told of yet, or has
// not told of. An assumption is of one resource version, and ends with it.
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

// told is the object as the API told of it.
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

// get is the object as it is assumed to be.
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

// indexed are the objects of an index, as they are assumed to be.
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

// assume takes the object to be as given. It must be of the version that the API told of last.
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

// restore takes back what was assumed.
func (a *assumed[T]) restore(o T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if over, ok := a.over[key(o)]; ok && over.GetResourceVersion() == o.GetResourceVersion() {
		delete(a.over, key(o))
	}
}

// changed forgets what was assumed of an object that is gone, or of which the API has told anew.
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
