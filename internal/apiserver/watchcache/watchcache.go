// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package watchcache caches the data that many requests read: the decoded object and the encodings of each stored
// record, and the stream of changes that all watches of a resource share.
//
// A [Kind] combines a descriptor with a store. [Kind.Cached] returns a record's decoded object with its encodings, a
// [CachedObject], which is kept on the record itself. So GET, LIST and WATCH encode an object once for each revision,
// version and media type. [Views] bounds the memory of all cached objects, and drops the oldest. A [Feed] reads one
// engine watcher and keeps its events in a linked list. Each client's watch is a [Cursor] on the list, without a queue
// of its own.
//
// # Concurrency
//
// Everything but a Cursor is safe for concurrent use. Objects in a CachedObject are shared and must not be changed.
// Readers take no lock that a writer holds.
package watchcache

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Storage is the part of a store that a Kind uses.
type Storage interface {
	Range(ctx context.Context, r store.Range) (store.Page, error)
	Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error)
	Revision() int64
}

// Kind is a descriptor with its store.
type Kind struct {
	*resource.Descriptor
	// Root is the prefix of all the kind's keys: "/registry/pods/".
	Root string
	// Unstructured is true for kinds whose objects are unstructured.
	Unstructured bool
	// HubGroup is the group of the hub's Go types. It differs from the kind's group for events.k8s.io, whose hub type
	// is in the core group.
	HubGroup string
	// Feed is the stream of the kind's changes.
	Feed *Feed
	// Traffic counts the events that watches sent, by version.
	Traffic []Traffic
	// Unread is called for each record that cannot be decoded, each time; first is true once for each. Nil: there is none.
	Unread func(e *store.UnreadableError, first bool)
	// Foreign is up to which revision other processes may have written records: [Verify] looks at those.
	Foreign int64

	views      *Views
	unreadable unreadables
	verified   verified
}

// NewKind makes the Kind of a descriptor.
func NewKind(d *resource.Descriptor, s Storage, v *Views, lifetime *Lifetime) *Kind {
	k := &Kind{Descriptor: d, Root: "/registry/" + d.Prefix + "/", views: v, Traffic: make([]Traffic, len(d.Versions))}
	k.HubGroup = d.Group
	if hub := d.Hub(); hub != nil && hub.New != nil {
		obj := hub.New()
		_, k.Unstructured = obj.(*unstructured.Unstructured)
		if strings.HasPrefix(reflect.TypeOf(obj).Elem().PkgPath(), "k8s.io/api/core/") {
			k.HubGroup = ""
		}
	}
	k.Feed = &Feed{kind: k, storage: s, lifetime: lifetime, capacity: defaultCapacity, lag: maxLag, lagBytes: maxLagBytes,
		space: milestoneEvents}
	return k
}

// Key returns the store's key of an object.
func (k *Kind) Key(namespace, name string) string {
	if k.Namespaced {
		return k.Root + namespace + "/" + name
	}
	return k.Root + name
}

// Under returns the prefix of the keys of a namespace; of all keys if the namespace is empty.
func (k *Kind) Under(namespace string) string {
	if k.Namespaced && namespace != "" {
		return k.Root + namespace + "/"
	}
	return k.Root
}

// Media is a media type whose encodings are cached.
type Media int

// The cached media types. YAML and tables are made from their encodings or from the object.
const (
	JSON Media = iota
	Protobuf
	CBOR
	mediaCount
)

// CachedObject is one object at one revision, decoded and encoded; its upstream counterpart is cachingObject of
// k8s.io/apiserver.
type CachedObject struct {
	Kind *Kind
	// Hub is the object; shared, read-only.
	Hub resource.Object

	record    *store.Record // nil: it is not on a record, and not counted
	shared    atomic.Bool   // clients in the process may hold Hub for longer
	encodings []atomic.Pointer[[]byte]
	metadata  atomic.Pointer[[]byte] // of the object as JSON; nil: no client asked yet
	fresh     atomic.Bool            // no request has read it since it was created
	answered  atomic.Bool            // an answer was encoded from it, and not kept
	pieced    atomic.Bool            // so was a piece of a list
	listed    atomic.Int64           // the last list that read it
	fieldSet  atomic.Pointer[fields.Set]
}

// NewCachedObject wraps a hub object that is not changed any more. It clears the kind and version of a typed object,
// which encodings omit.
func (k *Kind) NewCachedObject(hub resource.Object) *CachedObject {
	if gvk := hub.GetObjectKind(); !k.Unstructured && gvk.GroupVersionKind().Kind != "" {
		gvk.SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return &CachedObject{Kind: k, Hub: hub, encodings: make([]atomic.Pointer[[]byte], int(mediaCount)*len(k.Versions))}
}

// Unstored returns obj as if it had been stored and read again, without a revision. Codecs do not keep every difference (between an empty
// list and none).
func (k *Kind) Unstored(key string, obj resource.Object) (*CachedObject, error) {
	data, err := k.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	rv := obj.GetResourceVersion()
	if obj, err = k.Decode(&store.Record{Key: key, Value: data}); err != nil {
		return nil, err
	}
	obj.SetResourceVersion(rv)
	return k.NewCachedObject(obj), nil
}

// Attach caches hub, the object that the record was encoded from, on the record.
func (k *Kind) Attach(r *store.Record, hub resource.Object) *CachedObject {
	f := k.NewCachedObject(hub)
	f.record = r
	if _, ok := r.View().(*lent); ok {
		f.shared.Store(true)
	}
	r.SetView(f)
	k.views.add(r, k.cachedSize(r))
	return f
}

// cachedSize estimates the memory of a record's decoded object.
func (k *Kind) cachedSize(r *store.Record) int64 {
	if c, ok := k.Codec.(resource.SizeCodec); ok {
		return c.DecodedSize(len(r.Value)) + 1024
	}
	return 2*int64(len(r.Value)) + 1024
}

// Cached returns the record's decoded object with its encodings, and caches it if necessary. Concurrent callers get the
// same one.
func (k *Kind) Cached(r *store.Record) (*CachedObject, error) {
	for {
		before := r.View()
		if f, ok := before.(*CachedObject); ok && f.Kind == k {
			f.found()
			return f, nil
		}
		hub, err := keptHub(k, r)
		if err != nil {
			return nil, err
		}
		f := k.NewCachedObject(hub)
		f.record = r
		if _, ok := before.(*lent); ok {
			f.shared.Store(true)
		}
		if r.ReplaceView(before, f) {
			k.views.add(r, k.cachedSize(r))
			return f, nil
		}
	}
}

// Created is [Kind.Cached] for a record that was just created. If the kind has no watchers, few of the newest objects stay cached until
// they are read: most are not read soon, and a list encodes them once.
func (k *Kind) Created(r *store.Record) (*CachedObject, error) {
	if f := k.view(r); f != nil {
		return f, nil
	}
	if k.Feed.running() || r.View() != nil {
		return k.Cached(r)
	}
	hub, err := keptHub(k, r)
	if err != nil {
		return nil, err
	}
	f := k.freshObject(r, hub)
	if !r.ReplaceView(nil, f) {
		return k.Cached(r)
	}
	k.views.addFresh(r, k.cachedSize(r))
	return f, nil
}

// AttachCreated is [Kind.Attach] for a record that was just created, as [Kind.Created] is [Kind.Cached].
func (k *Kind) AttachCreated(r *store.Record, hub resource.Object) {
	if k.Feed.running() {
		k.Attach(r, hub)
		return
	}
	r.SetView(k.freshObject(r, hub))
	k.views.addFresh(r, k.cachedSize(r))
}

func (k *Kind) freshObject(r *store.Record, hub resource.Object) *CachedObject {
	f := k.NewCachedObject(hub)
	f.record = r
	f.fresh.Store(true)
	return f
}

// found notes that a request reads the object: it is not fresh any more.
func (f *CachedObject) found() {
	if f.fresh.Load() && f.fresh.CompareAndSwap(true, false) {
		f.Kind.views.add(f.record, f.Kind.cachedSize(f.record))
	}
}

// Once is [Kind.Cached] for a record that is about to be replaced: it does not cache the object.
func (k *Kind) Once(r *store.Record) (*CachedObject, error) {
	if f := k.view(r); f != nil {
		return f, nil
	}
	hub, err := k.hub(r)
	if err != nil {
		return nil, err
	}
	return k.NewCachedObject(hub), nil
}

// view returns the record's cached object; nil if there is none.
func (k *Kind) view(r *store.Record) *CachedObject {
	if f, ok := r.View().(*CachedObject); ok && f.Kind == k {
		return f
	}
	return nil
}

// hub returns the object of a record without a cached object of this kind: one that is there, or a newly decoded one.
func (k *Kind) hub(r *store.Record) (resource.Object, error) {
	if hub := knownHub(k, r); hub != nil {
		return hub, nil
	}
	return decodedHub(k, r)
}

// keptHub is [Kind.hub] for an object that is about to be cached. A newly decoded one shares its parts with others.
func keptHub(k *Kind, r *store.Record) (resource.Object, error) {
	if hub := knownHub(k, r); hub != nil {
		return hub, nil
	}
	hub, err := decodedHub(k, r)
	if err == nil {
		decodedPodParts.share(hub)
	}
	return hub, err
}

// knownHub returns the object that a client in the process still holds, or that of the same kind of another server that has the record.
// Nil: there is none.
func knownHub(k *Kind, r *store.Record) resource.Object {
	switch v := r.View().(type) {
	case *lent:
		if hub := v.hub(); hub != nil && k.alike(v.kind) {
			return hub
		}
	case *CachedObject:
		if k.alike(v.Kind) {
			return v.Hub
		}
	}
	return nil
}

func decodedHub(k *Kind, r *store.Record) (resource.Object, error) {
	if v, ok := r.View().(store.Unopened); ok {
		opened, err := v.Open()
		if err != nil {
			return nil, k.sealed(r, err)
		}
		k.unreadable.readable(r)
		return k.Decode(opened)
	}
	return k.Decode(r)
}

// alike reports whether another kind decodes records to the same objects: it is the same built-in kind of a server in this process. The
// servers of a cluster and its forks share records.
func (k *Kind) alike(other *Kind) bool {
	return k == other || !k.Unstructured && !other.Unstructured && k.Prefix == other.Prefix &&
		k.HubGroupVersionKind() == other.HubGroupVersionKind()
}

// lent replaces a dropped cached object while a client in the process may still hold its object and keep it alive.
type lent struct {
	kind *Kind
	hub  func() resource.Object // nil: it was freed
}

// left returns what stays on the record when its cached object is dropped.
func (f *CachedObject) left() any {
	if weakly := f.Kind.Hub().Weak; weakly != nil && f.shared.Load() {
		return &lent{f.Kind, weakly(f.Hub)}
	}
	return nil
}

// Share returns the object in a version, for clients in this process. They may keep it and must not change it.
func (f *CachedObject) Share(version int) (resource.Object, error) {
	f.shared.Store(true)
	return f.Kind.Versioned(version, f.Hub)
}

// Size returns the object's stored size in bytes; 0 if it is not stored.
func (f *CachedObject) Size() int {
	if f.record == nil {
		return 0
	}
	return len(f.record.Value)
}

// Listing counts a list that begins.
func (k *Kind) Listing() { k.views.lists.Add(1) }

// Listed is [Kind.Cached] for a list of many records. It caches only if there is room: otherwise a list larger than the
// cache would drop, each time, the objects that it reads next and those that others use.
func (k *Kind) Listed(r *store.Record) (*CachedObject, error) {
	if f := k.view(r); f != nil {
		f.found()
		f.listed.Store(k.views.lists.Load())
		return f, nil
	}
	if !k.views.room(k.cachedSize(r)) {
		hub, err := k.hub(r)
		if err != nil {
			return nil, err
		}
		return k.NewCachedObject(hub), nil
	}
	f, err := k.Cached(r)
	if err != nil {
		return nil, err
	}
	f.listed.Store(k.views.lists.Load())
	return f, nil
}

// pieced is the view of a record of which a kept piece of a list was made, and nothing else is cached. There is one only.
type pieced struct{ _ byte }

var once = &pieced{}

// Pieced is [Kind.Listed] for a piece of a list that is kept itself, encoded. Most records are read for one piece only, so that their
// objects are not cached. They are if the piece is made anew, because another of its records has changed.
func (k *Kind) Pieced(r *store.Record) (*CachedObject, error) {
	switch v := r.View().(type) {
	case nil:
		f, err := k.Once(r)
		if err == nil {
			r.ReplaceView(nil, once) // unless another caller has cached something meanwhile
		}
		return f, err
	case *CachedObject:
		if v.Kind == k && v.fresh.Load() {
			r.ReplaceView(v, once)
			return v, nil
		}
	case *pieced:
		f, err := k.Listed(r)
		if err == nil {
			f.pieced.Store(true)
		}
		return f, err
	}
	return k.Listed(r)
}

// Decode decodes a record to a new object, which the caller owns.
func (k *Kind) Decode(r *store.Record) (resource.Object, error) {
	hub, err := k.Codec.Decode(r.Value)
	if err != nil {
		return nil, k.broken(r, err)
	}
	if !k.Unstructured {
		hub.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	if hub.GetResourceVersion() == "" {
		hub.SetResourceVersion(strconv.FormatInt(r.Revision, 10))
	}
	settle(hub, k.Unstructured)
	return hub, nil
}

// settle does what can be done only while a decoded object is not shared: it makes the texts that quantities cache at the first call, and
// has the object share its field sets.
func settle(hub resource.Object, unstructured bool) {
	if measured, ok := hub.(interface{ Size() int }); ok {
		measured.Size()
	}
	if !unstructured {
		decodedFieldSets.share(hub)
	}
}

// ReadBack makes obj, which was encoded and belongs to the caller, what [Kind.Decode] would return for its record except for the revision.
// Its parts are then shared with others: the caller may change nothing but the revision. False: the record must be decoded, and obj is of
// no use any more.
func (k *Kind) ReadBack(obj resource.Object) bool {
	r, ok := k.Codec.(resource.ReadBacker)
	if !ok || !r.ReadBack(obj) {
		return false
	}
	settle(obj, k.Unstructured)
	decodedPodParts.share(obj)
	return true
}

// Fields returns the object's selectable fields.
func (f *CachedObject) Fields() fields.Set {
	if s := f.fieldSet.Load(); s != nil {
		return *s
	}
	s := f.Kind.FieldSet(f.Hub)
	f.fieldSet.Store(&s)
	return s
}

// FieldSet returns an object's selectable fields.
func (k *Kind) FieldSet(hub resource.Object) fields.Set {
	var s fields.Set
	if k.Fields != nil {
		s = k.Fields(hub)
	}
	if s == nil {
		s = fields.Set{}
	}
	s["metadata.name"] = hub.GetName()
	if k.Namespaced {
		s["metadata.namespace"] = hub.GetNamespace()
	}
	return s
}

// Versioned returns the object in a served version. The result is shared if that is the hub; the caller must not change it.
func (k *Kind) Versioned(version int, hub resource.Object) (resource.Object, error) {
	v := &k.Versions[version]
	if v.FromHub == nil {
		return hub, nil
	}
	obj, err := v.FromHub(hub.DeepCopyObject().(resource.Object))
	if err != nil {
		return nil, fmt.Errorf("convert to version %s: %w", v.Name, err)
	}
	if !k.Unstructured {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return obj, nil
}

// Bytes returns the object's encoding in a version and media type, without the kind and version that its position in a
// list implies: JSON of a typed object begins with its metadata, protobuf is the bare message, CBOR is a map without a
// tag.
func (f *CachedObject) Bytes(version int, m Media) ([]byte, error) {
	slot := &f.encodings[version*int(mediaCount)+int(m)]
	if b := slot.Load(); b != nil {
		return *b, nil
	}
	b, err := f.encode(version, m)
	if err != nil {
		return nil, err
	}
	slot.Store(&b)
	if f.record != nil {
		f.Kind.views.grow(f.record, int64(len(b)))
	}
	return b, nil
}

func (f *CachedObject) encode(version int, m Media) ([]byte, error) {
	obj, err := f.Kind.Versioned(version, f.Hub)
	if err != nil {
		return nil, err
	}
	return EncodeBare(obj, m)
}

// Metadata returns the object's metadata as JSON, which is the same in all versions. It is shared: callers do not change it.
func (f *CachedObject) Metadata() ([]byte, error) {
	if b := f.metadata.Load(); b != nil {
		return *b, nil
	}
	b, err := json.Marshal(&meta.AsPartialObjectMetadata(f.Hub).ObjectMeta)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	f.metadata.Store(&b)
	if f.record != nil {
		f.Kind.views.grow(f.record, int64(len(b)))
	}
	return b, nil
}

// EncodeBare encodes an object as an item of a list.
func EncodeBare(obj runtime.Object, m Media) ([]byte, error) {
	switch m {
	case Protobuf:
		p, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return nil, fmt.Errorf("encode %T: it has no protobuf form", obj)
		}
		return p.Marshal()
	case CBOR:
		return cbor.Marshal(content(obj))
	}
	return json.Marshal(content(obj))
}

// content is what of an object is encoded.
func content(obj runtime.Object) any {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return u.Object
	}
	return obj
}
