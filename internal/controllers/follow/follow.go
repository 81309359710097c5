// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package follow follows the metadata of one resource, for controllers that do so for resources which come and go and which no
// other controller has in full. A [Resource] tells of each object that is there or has changed, and of each that has gone. It
// keeps no more than their names, UIDs and versions, and needs neither the goroutines nor the buffers of an informer, of which
// there would be one for each custom resource definition.
package follow

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

// Resource is one resource that is followed. Its functions are called by one goroutine, in the order of what happened.
type Resource struct {
	seen   func(metav1.Object)
	gone   func(Gone)
	synced chan struct{}
	first  sync.Once
	known  map[cache.ObjectName]state // the reflector's own goroutine's
}

// Gone is an object that is there no more.
type Gone struct {
	cache.ObjectName
	UID types.UID
}

type state struct {
	uid     types.UID
	version string
}

// New makes a follower that tells seen and gone.
func New(seen func(metav1.Object), gone func(Gone)) *Resource {
	return &Resource{seen: seen, gone: gone, synced: make(chan struct{}), known: map[cache.ObjectName]state{}}
}

// Synced is closed when all has been told of that was there in the beginning.
func (r *Resource) Synced() <-chan struct{} { return r.synced }

// Run follows the resource until ctx ends. A panic of who is told is an error.
func (r *Resource) Run(ctx context.Context, client metadata.Interface, gvr schema.GroupVersionResource) (err error) {
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
		Name: "follow " + gvr.String(),
	}).RunWithContext(ctx)
	return nil
}

func (r *Resource) see(obj any) error {
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
		r.gone(Gone{at, was.uid})
	}
	r.known[at] = is
	r.seen(o)
	return nil
}

// Add implements [cache.ReflectorStore].
func (r *Resource) Add(obj any) error { return r.see(obj) }

// Update implements [cache.ReflectorStore].
func (r *Resource) Update(obj any) error { return r.see(obj) }

// Delete implements [cache.ReflectorStore].
func (r *Resource) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("follow objects: %T has no metadata", obj)
	}
	at := cache.MetaObjectToName(o)
	if was, ok := r.known[at]; ok {
		delete(r.known, at)
		r.gone(Gone{at, was.uid})
	}
	return nil
}

// Replace implements [cache.ReflectorStore].
func (r *Resource) Replace(all []any, _ string) error {
	there := make(map[cache.ObjectName]bool, len(all))
	for _, obj := range all {
		if o, ok := obj.(metav1.Object); ok {
			there[cache.MetaObjectToName(o)] = true
		}
	}
	for at, was := range r.known {
		if !there[at] {
			delete(r.known, at)
			r.gone(Gone{at, was.uid})
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
func (r *Resource) Resync() error { return nil }
