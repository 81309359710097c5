// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kind has the common parts of the built-in kinds' descriptors: [Describe] completes a descriptor for a Go type, and small adaptors
// convert functions on a kind's own type to those on [resource.Object] for a [resource.Strategy].
//
// The package's functions run once, while the list of kinds is built. Descriptors are immutable afterwards.
package kind

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"unsafe"
	"weak"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/deprecation"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Describe completes the descriptor of a kind to whose hub form P points: names that follow from Kind and Resource, the key's prefix,
// version v1 unless Storage sets another, that version itself, and the codec.
func Describe[P resource.Object](d resource.Descriptor) *resource.Descriptor {
	return describe(d, formOf[P]())
}

// form makes and holds objects of one Go type. What can be is written for it, and what cannot for a pointer to an object: code for the
// object itself as a type parameter is compiled for every kind anew.
type form struct{ of reflect.Type }

func formOf[P resource.Object]() form { return form{reflect.TypeFor[P]().Elem()} }

// make returns a new object.
func (f form) make() resource.Object { return reflect.New(f.of).Interface().(resource.Object) }

// weak returns a function that returns the object without keeping it alive. An object of another type it does not keep.
func (f form) weak(obj resource.Object) func() resource.Object {
	v := reflect.ValueOf(obj)
	if v.Type() != reflect.PointerTo(f.of) {
		return func() resource.Object { return nil }
	}
	to := weak.Make((*byte)(v.UnsafePointer()))
	return func() resource.Object {
		p := to.Value()
		if p == nil {
			return nil
		}
		//nolint:gosec // it points to an object of that type, see above
		return reflect.NewAt(f.of, unsafe.Pointer(p)).Interface().(resource.Object)
	}
}

func describe(d resource.Descriptor, f form) *resource.Descriptor {
	if d.Singular == "" {
		d.Singular = strings.ToLower(d.Kind)
	}
	if d.ListKind == "" {
		d.ListKind = d.Kind + "List"
	}
	if d.Prefix == "" {
		d.Prefix = d.Resource
	}
	if d.Storage == "" {
		d.Storage = "v1"
	}
	gvk := d.GroupVersionKind(d.Storage)
	if d.Hub() == nil {
		d.Versions = append(d.Versions, version(gvk, f))
		if !withoutColumns[d.Kind] {
			d.Versions[len(d.Versions)-1].Columns = upstream.Columns(gvk)
		}
	}
	if d.Codec == nil {
		d.Codec = completing{resource.ProtobufCodec(gvk, d.Hub().New), &d}
	}
	if d.Strategy.GarbageCollection == "" {
		d.Strategy.GarbageCollection = metav1.DeletePropagationBackground
	}
	return &d
}

// withoutColumns are the kinds that kubectl shows with name and age only.
var withoutColumns = map[string]bool{
	"ClusterRole": true, "CSIStorageCapacity": true, "LimitRange": true, "Role": true,
	"LocalSubjectAccessReview": true, "SelfSubjectAccessReview": true, "SelfSubjectReview": true,
	"SelfSubjectRulesReview": true, "SubjectAccessReview": true, "TokenReview": true, "Binding": true,
}

// Version returns a served version to whose Go type P points, without columns and conversions.
func Version[P resource.Object](gvk schema.GroupVersionKind) resource.Version {
	return version(gvk, formOf[P]())
}

func version(gvk schema.GroupVersionKind, f form) resource.Version {
	warning := ""
	if gvk.Version != "v1" {
		asked := f.make()
		asked.GetObjectKind().SetGroupVersionKind(gvk)
		if deprecation.IsDeprecated(asked, 1, 37) {
			warning = deprecation.WarningMessage(asked)
		}
	}
	return resource.Version{
		Name:    gvk.Version,
		New:     f.make,
		Default: func(obj resource.Object) { upstream.Default(obj) },
		FieldLabel: func(label, value string) (string, string, error) {
			return upstream.FieldLabel(gvk, label, value)
		},
		Protobuf:    true,
		Strategic:   true,
		Weak:        f.weak,
		Deprecation: warning,
	}
}

// Settle runs f after the defaults, on clients' objects and on stored ones: it synchronizes fields with the same meaning, and moves
// write-only fields to where they are stored. A second run must change nothing.
func Settle[P resource.Object](d *resource.Descriptor, f func(obj P)) *resource.Descriptor {
	v := d.Hub()
	fill := v.Default
	v.Default = func(obj resource.Object) {
		fill(obj)
		if o, ok := obj.(P); ok {
			f(o)
		}
	}
	return d
}

// completing is a codec that sets the defaults of fields that stored objects lack: fields that a later version of Kubernetes added, and
// fields that were empty, which the stored form cannot tell from absent ones.
type completing struct {
	resource.Codec
	d *resource.Descriptor
}

// Decode implements [resource.Codec].
func (c completing) Decode(data []byte) (resource.Object, error) {
	obj, err := c.Codec.Decode(data)
	if err != nil {
		return nil, err
	}
	c.d.Hub().Default(obj)
	return obj, nil
}

// StoredGroupVersion implements [resource.VersionCodec].
func (c completing) StoredGroupVersion() schema.GroupVersion {
	if v, ok := c.Codec.(resource.VersionCodec); ok {
		return v.StoredGroupVersion()
	}
	return c.d.HubGroupVersionKind().GroupVersion()
}

// StoredAs has the objects of a described kind stored under another version, of the same protobuf form, that the release before knows.
func StoredAs(version string, d *resource.Descriptor) *resource.Descriptor {
	d.Codec = completing{resource.ProtobufCodecOf(d.GroupVersionKind(d.Storage), version, d.Hub().New), d}
	return d
}

// AppendEncode implements [resource.Appender].
func (c completing) AppendEncode(dst []byte, obj resource.Object) ([]byte, error) {
	if a, ok := c.Codec.(resource.Appender); ok {
		return a.AppendEncode(dst, obj) //nolint:wrapcheck // it is the codec's
	}
	b, err := c.Codec.Encode(obj)
	return append(dst, b...), err //nolint:wrapcheck // likewise
}

// ReadBack implements [resource.ReadBacker].
func (c completing) ReadBack(obj resource.Object) bool {
	r, ok := c.Codec.(resource.ReadBacker)
	if !ok || !r.ReadBack(obj) {
		return false
	}
	c.d.Hub().Default(obj)
	return true
}

// Also serves a described kind in a further version, less preferred than its others, to whose Go type P points.
func Also[P resource.Object](d *resource.Descriptor, version string) {
	also(d, version, formOf[P]())
}

func also(d *resource.Descriptor, name string, f form) {
	gvk := d.GroupVersionKind(name)
	gk := schema.GroupKind{Group: d.Group, Kind: d.Kind}
	hub := d.Hub()
	newHub := hub.New
	v := version(gvk, f)
	v.Columns = hub.Columns
	v.ToHub = func(obj resource.Object) (resource.Object, error) {
		out := newHub()
		return out, upstream.Convert(obj, out, gk)
	}
	v.FromHub = func(obj resource.Object) (resource.Object, error) {
		out := f.make()
		return out, upstream.Convert(obj, out, gk)
	}
	d.Versions = append(d.Versions, v)
}

// OnCreate adapts a function on the kind's own type for PrepareCreate.
func OnCreate[P resource.Object](f func(obj P)) func(context.Context, resource.Object) {
	return func(_ context.Context, obj resource.Object) { f(as[P](obj)) }
}

// OnUpdate adapts a function on the kind's own type for PrepareUpdate.
func OnUpdate[P resource.Object](f func(obj, old P)) func(context.Context, resource.Object, resource.Object) {
	return func(_ context.Context, obj, old resource.Object) { f(as[P](obj), as[P](old)) }
}

// Warn adapts a function on the kind's own type for Warn; old is nil on create.
func Warn[P resource.Object](f func(obj, old P) []string) func(context.Context, resource.Object, resource.Object) []string {
	return func(_ context.Context, obj, old resource.Object) []string {
		if old == nil {
			var none P
			return f(as[P](obj), none)
		}
		return f(as[P](obj), as[P](old))
	}
}

// Fields adapts a function on the kind's own type for Fields.
func Fields[P resource.Object](f func(obj P) fields.Set) func(resource.Object) fields.Set {
	return func(obj resource.Object) fields.Set { return f(as[P](obj)) }
}

// as returns the object in the kind's own type. The server passes only hub objects to strategies.
func as[P resource.Object](obj resource.Object) P { return obj.(P) }

// Status is the status subresource: prepare restores everything but the status, check validates.
func Status[P resource.Object](prepare func(obj, old P), check upstream.UpdateCheck) resource.Subresource {
	return Window("status", prepare, check)
}

// Window is a subresource that gets, updates and patches the object itself under rules of its own.
func Window[P resource.Object](name string, prepare func(obj, old P), check upstream.UpdateCheck) resource.Subresource {
	return resource.Subresource{
		Name:     name,
		Verbs:    []string{"get", "patch", "update"},
		Strategy: &resource.Strategy{PrepareUpdate: OnUpdate(prepare), ValidateUpdate: check},
	}
}

// KeepMeta lets a status update change only the metadata that it may: for most kinds not labels, annotations and finalizers, as upstream's
// reset for status.
func KeepMeta(obj, old metav1.Object) { metav1.ResetObjectMetaForStatus(obj, old) }

// Same compares as upstream does: quantities and times by value, nil and empty alike.
func Same(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }

// Invalid returns a list of one error.
func Invalid(e *field.Error) field.ErrorList { return field.ErrorList{e} }

// LabelNameWarning warns of a name that pods and their hostnames will contain though it is no DNS label.
func LabelNameWarning(name string) []string {
	msgs := validation.IsDNS1123Label(name)
	if len(msgs) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
}
