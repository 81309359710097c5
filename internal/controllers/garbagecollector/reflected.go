// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// reflected follows one resource that no other controller does. The graph has all that is wanted of its objects, so it
// keeps no more than their UIDs; and it needs neither the goroutines nor the buffers of an informer, of which there would
// be one for each custom resource definition.
type reflected struct {
	observed func(metav1.Object)
	removed  func(types.UID)
	synced   chan struct{}
	first    sync.Once
	known    map[cache.ObjectName]state // the reflector's own goroutine's
}

type state struct {
	uid     types.UID
	version string
}

func newReflected(observed func(metav1.Object), removed func(types.UID)) *reflected {
	return &reflected{observed: observed, removed: removed, synced: make(chan struct{}), known: map[cache.ObjectName]state{}}
}

// run follows the resource until ctx ends. A panic of who is told is an error.
func (r *reflected) run(ctx context.Context, client metadata.Interface, gvr schema.GroupVersionResource) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("follow %s: panic: %v\n%s", gvr, v, debug.Stack())
		}
	}()
	objects := client.Resource(gvr)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return objects.Watch(ctx, o)
		},
	}, client)
	cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, r, cache.ReflectorOptions{
		Name: "garbage-collector " + gvr.String(),
	}).RunWithContext(ctx)
	return nil
}

func (r *reflected) see(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("follow objects: %T has no metadata", obj)
	}
	at, is := cache.MetaObjectToName(o), state{o.GetUID(), o.GetResourceVersion()}
	was, ok := r.known[at]
	if ok && was == is {
		return nil
	}
	if ok && was.uid != is.uid {
		r.removed(was.uid)
	}
	r.known[at] = is
	r.observed(o)
	return nil
}

// Add implements [cache.ReflectorStore].
func (r *reflected) Add(obj any) error { return r.see(obj) }

// Update implements [cache.ReflectorStore].
func (r *reflected) Update(obj any) error { return r.see(obj) }

// Delete implements [cache.ReflectorStore].
func (r *reflected) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("follow objects: %T has no metadata", obj)
	}
	at := cache.MetaObjectToName(o)
	if was, ok := r.known[at]; ok {
		delete(r.known, at)
		r.removed(was.uid)
	}
	return nil
}

// Replace implements [cache.ReflectorStore].
func (r *reflected) Replace(all []any, _ string) error {
	there := make(map[cache.ObjectName]bool, len(all))
	for _, obj := range all {
		if o, ok := obj.(metav1.Object); ok {
			there[cache.MetaObjectToName(o)] = true
		}
	}
	for at, was := range r.known {
		if !there[at] {
			delete(r.known, at)
			r.removed(was.uid)
		}
	}
	for _, obj := range all {
		if err := r.see(obj); err != nil {
			return err
		}
	}
	r.first.Do(func() { close(r.synced) })
	return nil
}

// Resync implements [cache.ReflectorStore].
func (r *reflected) Resync() error { return nil }
