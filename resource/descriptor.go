// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Descriptor is all that the server knows of one kind. Built-in kinds make theirs from Go, one a file in internal/kinds;
// kinds from CRDs are compiled from the schema at run time. One code path serves both. A Descriptor is immutable once
// it is given to the server.
type Descriptor struct {
	Group      string // "" is the core group
	Resource   string // plural, as in the path: "pods"
	Singular   string // "pod"
	Kind       string // "Pod"
	ListKind   string // "PodList"
	ShortNames []string
	Categories []string
	Namespaced bool

	// Versions are the served versions, most preferred first. Storage names the one that is the hub and is stored.
	Versions []Version
	Storage  string

	// Prefix is the part of the store's key after "/registry/" and before the namespace, as kube-apiserver lays keys out:
	// "pods", "services/specs", "minions" (nodes), "GROUP/RESOURCE" for CRs. No slashes at its ends.
	Prefix string
	// Codec turns hub objects to stored bytes and back.
	Codec Codec
	// TTL returns the seconds after which an object expires (events), from its write; nil: never.
	TTL func(obj Object) int64

	Strategy Strategy
	// Fields are the object's selectable fields beside metadata.name and metadata.namespace, in a set that is the caller's; nil: none.
	// FieldNames lists their names, so that a selector on any other is refused before anything is read.
	Fields     func(obj Object) fields.Set
	FieldNames []string

	Subresources []Subresource
	// Verbs that the resource itself answers, as discovery lists them; nil: create, delete, deletecollection, get, list,
	// patch, update, watch.
	Verbs []string
	// Announced are the verbs that discovery lists where they are fewer than Verbs; nil: all of them.
	Announced []string
	// Hidden kinds are served, but discovery and OpenAPI do not tell of them.
	Hidden bool
	// Unusable, when set, is the answer to every request for the kind.
	Unusable error
	// Create, when set, answers a create without storing anything (TokenReview, SubjectAccessReview, bindings). A nil object
	// without an error is answered as a success.
	Create func(ctx context.Context, b Backend, obj Object, opts *metav1.CreateOptions) (Object, error)
}

// GroupResource names the resource without a version.
func (d *Descriptor) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Resource}
}

// GroupVersionKind is the kind in a served version.
func (d *Descriptor) GroupVersionKind(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: d.Group, Version: version, Kind: d.Kind}
}

// HubGroupVersionKind is the kind that is stored: the codec's, if it is a [KindCodec], or Kind of Group in version Storage. Validation
// errors name its group and kind.
func (d *Descriptor) HubGroupVersionKind() schema.GroupVersionKind {
	if c, ok := d.Codec.(KindCodec); ok {
		return c.Kind()
	}
	return d.GroupVersionKind(d.Storage)
}

// StoredGroupVersion is the group and version that stored objects name: the codec's, if it is a [VersionCodec], or those of the hub.
func (d *Descriptor) StoredGroupVersion() schema.GroupVersion {
	if c, ok := d.Codec.(VersionCodec); ok {
		return c.StoredGroupVersion()
	}
	return d.HubGroupVersionKind().GroupVersion()
}

// Version returns the served version of that name, nil if there is none.
func (d *Descriptor) Version(name string) *Version {
	for i := range d.Versions {
		if d.Versions[i].Name == name {
			return &d.Versions[i]
		}
	}
	return nil
}

// Hub is the storage version. It is served or at least listed in Versions with Unserved set.
func (d *Descriptor) Hub() *Version { return d.Version(d.Storage) }

// Subresource returns the subresource of that name, nil if there is none.
func (d *Descriptor) Subresource(name string) *Subresource {
	for i := range d.Subresources {
		if d.Subresources[i].Name == name {
			return &d.Subresources[i]
		}
	}
	return nil
}

// Derived says how the objects of a kind that is not stored are made (PodMetrics of pods). Selectors apply to the metadata of the source.
// A list is always whole: limit and resourceVersion have no effect.
type Derived struct {
	// From is the kind of the sources. A namespaced kind has namespaced sources.
	From schema.GroupResource
	// Find returns the names of all sources in a namespace that a label selector may match; false: it is not known. Nil: it never is.
	Find func(namespace string, by labels.Selector) (names []string, known bool)
	// Make makes the objects of sources, and leaves out those of which there is none now. The result is in the order of answers. Sources are
	// shared hub objects.
	Make func(ctx context.Context, b Backend, sources []Object) ([]Object, error)
	// List makes a typed list, without its kind, of objects that Make has made.
	List func(objs []Object) runtime.Object
	// Missing is the error for a name: exists reports whether there is a source of that name.
	Missing func(namespace, name string, exists bool) error
}

// Version is one served form of a kind.
type Version struct {
	Name string
	// New returns an empty object of this version.
	New func() Object
	// Default fills in a decoded object's absent fields, in place; nil: nothing to fill in.
	Default func(obj Object)
	// ToHub and FromHub convert; nil when this version is the hub. They may return their argument changed, so the caller
	// gives them an object that is its own.
	ToHub, FromHub func(obj Object) (Object, error)
	// Deferred keeps a request's object in this version until it is encoded for the store: it is admitted, prepared and
	// validated as the client wrote it. Codec.Encode accepts it in any version, and Strategy.Match makes its counterpart.
	Deferred bool
	// Foresee, when set, does the work of FromHub for many objects together, so that FromHub of each is cheap afterwards: a
	// conversion webhook is called once for a list. The objects are shared.
	Foresee func(ctx context.Context, hubs []Object) error
	// Coerce refuses, as a decoder into a Go struct would, an object whose metadata has the wrong shape; nil for typed
	// objects, whose decoder does it. Called after decoding a request, before Prune; its error is a bad request.
	Coerce func(obj Object) error
	// Prune drops what the schema does not know from a decoded object, and reports (sorted) paths of dropped fields for
	// fieldValidation; nil for typed objects, whose decoder does it.
	Prune func(obj Object) []string
	// PruneApplied is Prune for what server-side apply made: nulls that the schema does not allow stay, and validation refuses
	// them; nil for typed objects.
	PruneApplied func(obj Object)
	// Columns are the columns of kubectl get; nil: name and age.
	Columns Columns
	// FieldLabel maps a field selector's label and value in this version to a selectable field of the hub, or refuses the
	// label with the text that clients know; nil: metadata.name and metadata.namespace alone are allowed.
	FieldLabel func(label, value string) (string, string, error)
	// Fields are the selectable fields that a hub object has in this version, beside metadata.name and metadata.namespace; nil:
	// those of Descriptor.Fields.
	Fields func(hub Object) (fields.Set, error)
	// Protobuf is set if objects of this version have a protobuf encoding.
	Protobuf bool
	// Weak is a way to an object that does not keep it alive: nil once it is gone. Nil: objects of this version are not kept so.
	Weak func(obj Object) func() Object
	// Strategic is set if strategic merge patch works: New's type carries patch tags.
	Strategic bool
	// Derived, when set, answers get and list with objects that are made from those of another kind, and stored nowhere.
	Derived *Derived
	// Unserved marks a version that is only stored.
	Unserved bool
	// Deprecation, when set, is sent as a Warning header with each answer.
	Deprecation string
}

// Codec turns hub objects to stored bytes and back. Encode must not keep obj; Decode must not keep or change data, and
// returns an object that is the caller's own.
type Codec interface {
	Encode(obj Object) ([]byte, error)
	Decode(data []byte) (Object, error)
}

// Appender is implemented by codecs that can encode into memory of the caller.
type Appender interface {
	// AppendEncode appends what Encode returns to dst. After an error the contents of dst beyond its length are undefined.
	AppendEncode(dst []byte, obj Object) ([]byte, error)
}

// KindCodec is an optional interface of [Codec]: it names the kind of the objects that it stores. The kind may be of another group than the
// one that serves it: events.k8s.io stores events of the core group.
type KindCodec interface {
	Kind() schema.GroupVersionKind
}

// VersionCodec is an optional interface of [Codec]: it names the group and version that stored objects name. The version may be one before
// the hub's, which older servers know, if both have the same stored form.
type VersionCodec interface {
	StoredGroupVersion() schema.GroupVersion
}

// SizeCodec is an optional interface of [Codec]: it estimates the memory of decoded objects, by which the server keeps them. Without it, an
// object takes twice its stored size.
type SizeCodec interface {
	// DecodedSize returns the bytes of memory of an object of which so many bytes are stored.
	DecodedSize(stored int) int64
}

// Columns makes the Table form (meta.k8s.io/v1) of hub objects.
type Columns interface {
	// Definitions are the columns; priority above 0 shows with -o wide only.
	Definitions() []metav1.TableColumnDefinition
	// Cells are one object's, one for each definition.
	Cells(obj Object) ([]any, error)
}

// Rows is an optional interface of [Columns]: it makes a row with conditions (a pod that has completed).
type Rows interface {
	Row(obj Object) (metav1.TableRow, error)
}

// Strategy is the kind's processing of an object before it is stored. Nil functions do nothing. All work on hub objects;
// the Prepare functions may change obj, which the caller owns, but not old, which is shared. None does I/O.
//
// The generic part is done by the server before and after: metadata (uid, creationTimestamp, name generation, deletion
// fields kept), the generic validation of metadata, resourceVersion preconditions.
type Strategy struct {
	// Match brings old, the stored hub object, into the version that obj is in; nil: both are hub objects. It is called before
	// all others on an update.
	Match func(ctx context.Context, obj, old Object) (Object, error)
	// Authorize may reject a write by its user, beyond the authorization of the request (roles that would grant more than
	// the user has). old is nil on create. It runs first, and its error is the response.
	Authorize func(ctx context.Context, obj, old Object) error
	// PrepareCreate drops what a client may not set (status), sets generation.
	PrepareCreate func(ctx context.Context, obj Object)
	// PrepareUpdate keeps what a client may not change, and raises generation where spec changed.
	PrepareUpdate func(ctx context.Context, obj, old Object)
	// Validate and ValidateUpdate are the whole validation, metadata included, as the upstream kind's functions are.
	Validate       func(ctx context.Context, obj Object) field.ErrorList
	ValidateUpdate func(ctx context.Context, obj, old Object) field.ErrorList
	// Undeclared is set if the kind has no declarative validation, which deduplicates errors.
	Undeclared bool
	// Warn returns warnings for the client; old is nil on create.
	Warn func(ctx context.Context, obj, old Object) []string
	// WarnDelete returns warnings for a client that deletes, by its options; nil: none.
	WarnDelete func(opts *metav1.DeleteOptions) []string
	// RefuseDelete returns why the object of that name cannot be deleted individually (deletecollection can); nil: it can.
	RefuseDelete func(name string) error
	// Allocate reserves resources outside of the object (cluster IPs, node ports) and writes them into obj; old is nil on
	// create, obj is nil on delete. It runs before Prepare and Validate, which see the result. Done is called once, with
	// whether the write was committed; it is nil when nothing was reserved.
	Allocate func(ctx context.Context, b Backend, obj, old Object, dryRun bool) (done func(committed bool), err error)
	// Graceful decides on deletion with grace: it may set opts.GracePeriodSeconds and reports whether the object is to stay
	// until its owner deletes it with grace 0 (pods).
	Graceful func(ctx context.Context, obj Object, opts *metav1.DeleteOptions) bool
	// Finalizers are in spec, not metadata, and must be empty before the object is removed (namespaces); nil: none.
	Finalizers func(obj Object) []string
	// BeginDelete changes the object when its deletion begins (namespace phase Terminating); nil: nothing.
	BeginDelete func(obj Object)
	// GarbageCollection is the default propagation policy of the kind's deletions.
	GarbageCollection metav1.DeletionPropagation
	// CreateOnUpdate allows PUT to create. Conditional refuses PUT without resourceVersion.
	CreateOnUpdate bool
	Conditional    bool
	// ReturnDeleted makes a DELETE that took the object away answer with the object instead of a Status (pods, services,
	// namespaces, service accounts, volumes …).
	ReturnDeleted bool
}
