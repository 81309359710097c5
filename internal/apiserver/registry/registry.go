// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package registry reads and writes stored objects of any kind. It is the only package of the API server that does: package
// verbs, which implements HTTP, and the server's own components use it.
//
//   - [Kinds] is the table of the kinds that are served.
//   - [Reader] gets, lists and watches.
//   - [Writer] creates, updates and deletes. It runs a kind's strategy, checks preconditions, allocates what the strategy allocates
//     and releases it again, keeps managed fields within bounds, and decides when finalizers and grace let an object go.
//   - [Backend] is the same for kinds' own actions, admission plug-ins and the server's components, by resource and name.
//
// The registry knows no requests. It calls admission through the functions of a [Creation], an [Update] or a [Deletion]; warnings and
// traces go to the context.
//
// # Concurrency
//
// Everything is safe for concurrent use. Returned objects are shared and read-only.
package registry

import (
	"context"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Kind is a descriptor at work.
type Kind = watchcache.Kind

// FieldManager keeps metadata.managedFields of what the server itself writes. Objects are hub objects; live is shared, obj is the
// caller's own.
type FieldManager interface {
	// Update records which fields of obj its writer changed from live (nil on create).
	Update(d *resource.Descriptor, version, subresource string, live, obj resource.Object, manager string) (resource.Object, error)
	// Apply merges a configuration into live (nil on create), and returns a new object.
	Apply(d *resource.Descriptor, version, subresource string, live resource.Object, c managedfields.Configuration) (resource.Object, error)
}

// Options of [New].
type Options struct {
	Store  *store.Store
	Fields FieldManager // nil: managedFields are left as they are
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now
	// ViewBytes bounds what decoded objects and encodings take; 0: 64 MiB.
	ViewBytes int64
	// Applied returns when all that the server makes of a resource's objects is true to the store as of a revision. It is called
	// after each commit. Nil: nothing is made of them.
	Applied func(ctx context.Context, r schema.GroupResource, revision int64)
	// Initializers is set when objects may wait for initializers.
	Initializers bool
	// Unread is called for each record that cannot be decoded, each time; first is true once for each. Nil: there is none.
	Unread func(r schema.GroupResource, e *store.UnreadableError, first bool)
	// Services are the backend's abilities besides objects.
	Services resource.Services
}

// Registry is the kinds that are served, and the ways to their objects.
type Registry struct {
	kinds   *Kinds
	reader  *Reader
	writer  *Writer
	backend *Backend
}

// New makes a registry whose watch feeds run until lifetime ends.
func New(lifetime *watchcache.Lifetime, o Options) *Registry {
	if o.ViewBytes == 0 {
		o.ViewBytes = 64 << 20
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	kinds := newKinds(o.Store, lifetime, o.ViewBytes)
	kinds.unread = o.Unread
	var waiting *uninitialized
	if o.Initializers {
		waiting = &uninitialized{}
	}
	r := &Registry{kinds: kinds, reader: &Reader{store: o.Store, now: o.Now, waiting: waiting}}
	r.writer = &Writer{store: o.Store, log: o.Log, now: o.Now, applied: o.Applied, waiting: waiting}
	r.backend = &Backend{Services: o.Services, kinds: kinds, writer: r.writer, store: o.Store, fields: o.Fields}
	r.writer.backend = r.backend
	return r
}

// Kinds is the table of the kinds that are served.
func (r *Registry) Kinds() *Kinds { return r.kinds }

// Reader gets, lists and watches objects.
func (r *Registry) Reader() *Reader { return r.reader }

// Writer creates, updates and deletes objects.
func (r *Registry) Writer() *Writer { return r.writer }

// Backend returns the part of the API server that kinds' own actions, admission plug-ins and the server's components use.
func (r *Registry) Backend() *Backend { return r.backend }

// Copy is an object's own copy of its hub object.
func Copy(f *watchcache.CachedObject) resource.Object {
	return f.Hub.DeepCopyObject().(resource.Object)
}

// WipeSystemFields clears the fields of an object that only the server may set.
func WipeSystemFields(obj resource.Object) {
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetSelfLink("")
}
