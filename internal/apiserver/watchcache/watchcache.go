// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package watchcache makes what is read often once: the decoded form and the encodings of each stored record, and the
// stream of changes that all watchers of a resource share.
//
// A [Kind] is a descriptor at work on a store. [Kind.Forms] is a record's decoded object with its encodings, kept on the
// record itself, so that GET, LIST and WATCH in all their media types encode an object once for each revision, version
// and media type; [Views] bounds what all of them together may take, and drops the oldest. A [Feed] is one engine watcher
// whose events are a linked list; each client's watch is a [Cursor] on it that holds no queue of its own.
//
// # Concurrency
//
// Everything here may be used by many goroutines, save a Cursor. Objects in Forms are shared: nobody changes them.
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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Storage is what a Kind needs of a store.
type Storage interface {
	Range(ctx context.Context, r store.Range) (store.Page, error)
	Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error)
	Revision() int64
}

// Kind is a descriptor at work.
type Kind struct {
	*resource.Descriptor
	// Root is the prefix of all the kind's keys: "/registry/pods/".
	Root string
	// Unstructured is true for kinds whose objects are maps.
	Unstructured bool
	// HubGroup is the group whose Go types the hub is of; it differs from the group for events.k8s.io, whose hub is core's.
	HubGroup string
	// Feed is the kind's stream of changes.
	Feed *Feed
	// Traffic is what watches were sent, by version.
	Traffic []Traffic

	views *Views
}

// NewKind puts a descriptor to work.
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
	k.Feed = &Feed{kind: k, storage: s, lifetime: lifetime, capacity: defaultCapacity, lag: maxLag, lagBytes: maxLagBytes, space: milestoneEvents}
	return k
}

// Key is the store's key of an object.
func (k *Kind) Key(namespace, name string) string {
	if k.Namespaced {
		return k.Root + namespace + "/" + name
	}
	return k.Root + name
}

// Prefix of the keys of a namespace; of all keys when it is empty.
func (k *Kind) Under(namespace string) string {
	if k.Namespaced && namespace != "" {
		return k.Root + namespace + "/"
	}
	return k.Root
}

// Media is one of the forms in which an object's bytes are kept.
type Media int

// The media whose bytes are kept. YAML and tables are made from them or from the object.
const (
	JSON Media = iota
	Protobuf
	CBOR
	mediaCount
)

// Forms is one object at one revision, decoded and encoded.
type Forms struct {
	Kind *Kind
	// Hub is the object; shared, read-only.
	Hub resource.Object

	record    *store.Record // nil: kept elsewhere, not counted
	shared    atomic.Bool   // others may keep Hub for longer
	encodings []atomic.Pointer[[]byte]
	listed    atomic.Int64 // the last list that it was in
	fieldSet  atomic.Pointer[fields.Set]
}

// NewForms wraps a hub object that nobody changes any more. A typed one loses its kind and version, which the bare forms lack.
func (k *Kind) NewForms(hub resource.Object) *Forms {
	if gvk := hub.GetObjectKind(); !k.Unstructured && gvk.GroupVersionKind().Kind != "" {
		gvk.SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return &Forms{Kind: k, Hub: hub, encodings: make([]atomic.Pointer[[]byte], int(mediaCount)*len(k.Versions))}
}

// Unstored is what obj would be if it were stored and read again, without a revision. Codecs do not keep every difference
// (between an empty list and none).
func (k *Kind) Unstored(key string, obj resource.Object) (*Forms, error) {
	data, err := k.Codec.Encode(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	rv := obj.GetResourceVersion()
	if obj, err = k.Decode(&store.Record{Key: key, Value: data}); err != nil {
		return nil, err
	}
	obj.SetResourceVersion(rv)
	return k.NewForms(obj), nil
}

// Attach keeps the forms of the object that a record was made from on the record.
func (k *Kind) Attach(r *store.Record, hub resource.Object) *Forms {
	f := k.NewForms(hub)
	f.record = r
	if _, ok := r.View().(*lent); ok {
		f.shared.Store(true)
	}
	r.SetView(f)
	k.views.add(r, k.formsSize(r))
	return f
}

// formsSize is about what a record's decoded object takes.
func (k *Kind) formsSize(r *store.Record) int64 {
	times := 2
	if k.Bulky {
		times = 12
	}
	return int64(times*len(r.Value) + 1024)
}

// Forms is the record's decoded and encoded forms, made now if nobody has before. All who ask at once get the same.
func (k *Kind) Forms(r *store.Record) (*Forms, error) {
	for {
		before := r.View()
		if f, ok := before.(*Forms); ok && f.Kind == k {
			return f, nil
		}
		hub, err := k.hub(r)
		if err != nil {
			return nil, err
		}
		f := k.NewForms(hub)
		f.record = r
		if _, ok := before.(*lent); ok {
			f.shared.Store(true)
		}
		if r.ReplaceView(before, f) {
			k.views.add(r, k.formsSize(r))
			return f, nil
		}
	}
}

// Once is [Kind.Forms] of a record that is about to be replaced: what it does not have is not kept for others.
func (k *Kind) Once(r *store.Record) (*Forms, error) {
	if f := k.view(r); f != nil {
		return f, nil
	}
	hub, err := k.hub(r)
	if err != nil {
		return nil, err
	}
	return k.NewForms(hub), nil
}

// view is the record's forms; nil if it has none.
func (k *Kind) view(r *store.Record) *Forms {
	if f, ok := r.View().(*Forms); ok && f.Kind == k {
		return f
	}
	return nil
}

// hub is the object of a record without forms: the one that somebody still has, or a new one.
func (k *Kind) hub(r *store.Record) (resource.Object, error) {
	if v, ok := r.View().(*lent); ok && v.kind == k {
		if hub := v.hub(); hub != nil {
			return hub, nil
		}
	}
	return k.Decode(r)
}

// lent stands for forms that had to go while somebody may still have their object, who keeps it alive.
type lent struct {
	kind *Kind
	hub  func() resource.Object // nil: nobody has it any more
}

// left is what a record has in the place of its forms when these have to go.
func (f *Forms) left() any {
	if weakly := f.Kind.Hub().Weak; weakly != nil && f.shared.Load() {
		return &lent{f.Kind, weakly(f.Hub)}
	}
	return nil
}

// Share is the object in a version, for somebody of this process who may keep it and does not change it.
func (f *Forms) Share(version int) (resource.Object, error) {
	f.shared.Store(true)
	return f.Kind.Versioned(version, f.Hub)
}

// Size is how many bytes are stored of the object; 0 if it is none that is stored.
func (f *Forms) Size() int {
	if f.record == nil {
		return 0
	}
	return len(f.record.Value)
}

// Listing is told of each list that begins.
func (k *Kind) Listing() { k.views.lists.Add(1) }

// Listed is the record's forms as [Kind.Forms] gives them, for a list of many. They are kept only if there is room: a list
// of more than there is room for would drop, each time, what it comes to next, and what others use.
func (k *Kind) Listed(r *store.Record) (*Forms, error) {
	if f := k.view(r); f != nil {
		f.listed.Store(k.views.lists.Load())
		return f, nil
	}
	if !k.views.room(k.formsSize(r)) {
		hub, err := k.hub(r)
		if err != nil {
			return nil, err
		}
		return k.NewForms(hub), nil
	}
	f, err := k.Forms(r)
	if err != nil {
		return nil, err
	}
	f.listed.Store(k.views.lists.Load())
	return f, nil
}

// Decode makes a new object from a record, which is the caller's own.
func (k *Kind) Decode(r *store.Record) (resource.Object, error) {
	hub, err := k.Codec.Decode(r.Value)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", r.Key, err)
	}
	if !k.Unstructured {
		hub.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	if hub.GetResourceVersion() == "" {
		hub.SetResourceVersion(strconv.FormatInt(r.Revision, 10))
	}
	if measured, ok := hub.(interface{ Size() int }); ok {
		measured.Size() // a quantity keeps its text when it is asked for that first: now, while nobody shares it
	}
	return hub, nil
}

// Fields is the object's selectable fields.
func (f *Forms) Fields() fields.Set {
	if s := f.fieldSet.Load(); s != nil {
		return *s
	}
	s := f.Kind.FieldSet(f.Hub)
	f.fieldSet.Store(&s)
	return s
}

// FieldSet is an object's selectable fields.
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

// Versioned is the object in a served version. It is shared when that is the hub; the caller must not change it.
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

// Bytes is the object in a version and medium, without the kind and version that a typed object's place in a list
// implies: JSON of a typed object begins with its metadata, protobuf is the bare message, CBOR is a map without a tag.
func (f *Forms) Bytes(version int, m Media) ([]byte, error) {
	slot := &f.encodings[version*int(mediaCount)+int(m)]
	if b := slot.Load(); b != nil {
		return *b, nil
	}
	obj, err := f.Kind.Versioned(version, f.Hub)
	if err != nil {
		return nil, err
	}
	b, err := EncodeBare(obj, m)
	if err != nil {
		return nil, err
	}
	slot.Store(&b)
	if f.record != nil {
		f.Kind.views.grow(f.record, int64(len(b)))
	}
	return b, nil
}

// EncodeBare encodes an object as it stands in a list.
func EncodeBare(obj runtime.Object, m Media) ([]byte, error) {
	u, free := obj.(*unstructured.Unstructured)
	switch {
	case m == Protobuf:
		p, ok := obj.(interface{ Marshal() ([]byte, error) })
		if !ok {
			return nil, fmt.Errorf("encode %T: it has no protobuf form", obj)
		}
		return p.Marshal()
	case m == CBOR && free:
		return cbor.Marshal(u.Object)
	case m == CBOR:
		return cbor.Marshal(obj)
	case free:
		return json.Marshal(u.Object)
	}
	return json.Marshal(obj)
}
