// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package metadatareflector watches the metadata of one resource, for controllers that do so for resources which come and go and which
// no other controller caches in full. A [Reflector] reports each object that exists or has changed, and each that was deleted. It keeps
// only names, UIDs and resource versions, and needs neither the goroutines nor the buffers of an informer, of which there would be one
// for each custom resource definition.
package metadatareflector

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
)

// Reflector watches one resource. One goroutine calls its functions, in the order of the changes.
type Reflector struct {
	seen   func(metav1.Object)
	gone   func(Deleted)
	synced chan struct{}
	first  sync.Once
	known  map[cache.ObjectName]state // the reflector's own goroutine's
}

// Deleted is an object that does not exist any more.
type Deleted struct {
	cache.ObjectName
	UID types.UID
}

type state struct {
	uid     types.UID
	version string
}

// New returns a reflector that calls seen for each object that exists or has changed, and gone for each that was deleted.
func New(seen func(metav1.Object), gone func(Deleted)) *Reflector {
	return &Reflector{seen: seen, gone: gone, synced: make(chan struct{}), known: map[cache.ObjectName]state{}}
}

// Synced is closed when seen has been called for every object of the first list.
func (r *Reflector) Synced() <-chan struct{} { return r.synced }

// Run watches the resource until ctx ends. It returns a panic of seen or gone as an error.
func (r *Reflector) Run(ctx context.Context, client metadata.Interface, gvr schema.GroupVersionResource) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("follow %s: panic: %v\n%s", gvr, v, debug.Stack())
		}
	}()
	objects := client.Resource(gvr)
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := objects.Watch(ctx, o)
			if apierrors.IsNotFound(err) { // the definition was deleted, and the caller is about to end ctx
				return nil, io.EOF // which the reflector does not log
			}
			return w, err
		},
	}, client)
	cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, r, cache.ReflectorOptions{
		Name: "follow " + gvr.String(),
	}).RunWithContext(ctx)
	return nil
}

func (r *Reflector) see(obj any) error {
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
		r.gone(Deleted{at, was.uid})
	}
	r.known[at] = is
	r.seen(o)
	return nil
}

// Add implements [cache.ReflectorStore].
func (r *Reflector) Add(obj any) error { return r.see(obj) }

// Update implements [cache.ReflectorStore].
func (r *Reflector) Update(obj any) error { return r.see(obj) }

// Delete implements [cache.ReflectorStore].
func (r *Reflector) Delete(obj any) error {
	o, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("follow objects: %T has no metadata", obj)
	}
	at := cache.MetaObjectToName(o)
	if was, ok := r.known[at]; ok {
		delete(r.known, at)
		r.gone(Deleted{at, was.uid})
	}
	return nil
}

// Replace implements [cache.ReflectorStore].
func (r *Reflector) Replace(all []any, _ string) error {
	there := make(map[cache.ObjectName]bool, len(all))
	for _, obj := range all {
		if o, ok := obj.(metav1.Object); ok {
			there[cache.MetaObjectToName(o)] = true
		}
	}
	for at, was := range r.known {
		if !there[at] {
			delete(r.known, at)
			r.gone(Deleted{at, was.uid})
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
func (r *Reflector) Resync() error { return nil }
