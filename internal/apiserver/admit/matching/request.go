// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// Request is one request as rules see it.
type Request struct {
	*admit.Attributes
	host    *admit.Host
	backend resource.Backend

	form     *Form
	equal    []*Form
	equalled bool

	namespace    *corev1.Namespace
	namespaceErr error
	namespaced   bool

	forms   []*Versioned // one per kind
	changed *Versioned   // the form that was changed last and is not in Attributes yet
	native  schema.GroupVersionKind
}

// NewRequest returns a Request for a request that is being admitted.
func NewRequest(h *admit.Host, b resource.Backend, a *admit.Attributes) *Request {
	q := &Request{Attributes: a, host: h, backend: b}
	if a.Object != nil {
		q.native = a.Object.GetObjectKind().GroupVersionKind()
	}
	return q
}

// Form returns the request's own form.
func (q *Request) Form() *Form {
	if q.form == nil {
		q.form = &Form{Resource: q.Resource(), Kind: q.Kind()}
	}
	return q.form
}

// equivalents returns the other forms of the same objects: other versions, and other groups that are stored as the same
// kind.
func (q *Request) equivalents() []*Form {
	if q.equalled {
		return q.equal
	}
	q.equalled = true
	own := q.Resource()
	add := func(d *resource.Descriptor) {
		for i := range d.Versions {
			v := &d.Versions[i]
			gvr := schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Resource}
			if v.Unserved || gvr == own {
				continue
			}
			at := admit.Attributes{Descriptor: d, Version: v.Name, Subresource: q.Subresource}
			if q.Subresource != "" && d.Subresource(q.Subresource) == nil {
				continue
			}
			q.equal = append(q.equal, &Form{Resource: gvr, Kind: at.Kind()})
		}
	}
	add(q.Descriptor)
	if q.host.Kinds != nil && q.Descriptor.Prefix != "" {
		for _, d := range q.host.Kinds() {
			if d.Prefix == q.Descriptor.Prefix && d.GroupResource() != q.Descriptor.GroupResource() {
				add(d)
			}
		}
	}
	return q.equal
}

// namespaceLabels returns the labels of the request's namespace. If the request writes the namespace, they are the new
// labels.
func (q *Request) namespaceLabels(ctx context.Context) (map[string]string, error) {
	if q.Descriptor.Resource == "namespaces" && q.Subresource == "" && (q.Operation == admit.Create || q.Operation == admit.Update) {
		return q.Current().GetLabels(), nil
	}
	ns, err := q.NamespaceObject(ctx)
	if err != nil {
		return nil, err
	}
	return ns.Labels, nil
}

// NamespaceObject returns the request's namespace as it is stored.
func (q *Request) NamespaceObject(ctx context.Context) (*corev1.Namespace, error) {
	if !q.namespaced {
		q.namespaced = true
		obj, err := q.backend.Get(ctx, schema.GroupResource{Resource: "namespaces"}, "", q.Namespace)
		if q.namespaceErr = err; err == nil {
			q.namespace = obj.(*corev1.Namespace)
		}
	}
	return q.namespace, q.namespaceErr
}

// Current returns the new object with all changes so far, in some form, or nil if there is none.
func (q *Request) Current() resource.Object {
	if q.changed != nil {
		return q.changed.Object.(resource.Object)
	}
	return q.Object
}

// Versioned are the request's objects in one form. They are shared, and read-only.
type Versioned struct {
	Form
	Object, Old runtime.Object // nil: none

	attributes *admission.VersionedAttributes
}

// In returns the request's objects in a form, with all changes so far.
func (q *Request) In(ctx context.Context, f *Form) (*Versioned, error) {
	for _, v := range q.forms {
		if v.Kind != f.Kind {
			continue
		}
		if v.Resource != f.Resource {
			other := *v
			other.Form, other.attributes = *f, nil
			return &other, nil
		}
		return v, nil
	}
	if err := q.Settle(); err != nil {
		return nil, err
	}
	v := &Versioned{Form: *f}
	if q.Operation == admit.Connect {
		v.Object = named(q.Options, f.Kind)
	} else if q.Object != nil {
		obj, err := q.convert(q.Object, f)
		if err != nil {
			return nil, err
		}
		v.Object = obj
	}
	if q.Old != nil {
		old, err := q.convert(q.Old, f)
		if err != nil {
			return nil, err
		}
		v.Old = old
	}
	q.forms = append(q.forms, v)
	return v, nil
}

// Change replaces the new object with the result of mutating the object in v. The result is converted to the request's
// own form only when that is needed.
func (q *Request) Change(v *Versioned, obj resource.Object) *Versioned {
	next := &Versioned{Form: v.Form, Object: obj, Old: v.Old}
	q.changed = next
	q.forms = []*Versioned{next}
	return next
}

// Settle converts pending changes to the request's own form.
func (q *Request) Settle() error {
	if q.changed == nil {
		return nil
	}
	obj, err := q.restore(q.changed.Object.(resource.Object), &q.changed.Form)
	if err != nil {
		return err
	}
	q.Object, q.changed = obj, nil
	return nil
}

// whole reports whether the request is about objects of the kind itself, which have versions: a scale, a binding have one form.
func (q *Request) whole() bool {
	if q.Subresource == "" {
		return true
	}
	s := q.Descriptor.Subresource(q.Subresource)
	return s == nil || s.GroupVersionKind.Kind == ""
}

// version returns the version that the form f names.
func (q *Request) version(f *Form) (*resource.Version, error) {
	d := q.Descriptor
	if r := f.Resource.GroupResource(); r != d.GroupResource() {
		d = q.host.Kind(r)
	}
	if d != nil {
		if v := d.Version(f.Resource.Version); v != nil {
			return v, nil
		}
	}
	return nil, fmt.Errorf("convert to %v: it is not served", f.Resource)
}

// convert converts obj, which is shared, to the form f.
func (q *Request) convert(obj resource.Object, f *Form) (runtime.Object, error) {
	if !q.whole() {
		return named(obj, f.Kind), nil
	}
	v, err := q.version(f)
	if err != nil {
		return nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if u.GetAPIVersion() == f.Kind.GroupVersion().String() {
			return obj, nil
		}
		hub, err := q.hub(u.DeepCopy())
		if err != nil || v.FromHub == nil {
			return hub, err
		}
		return v.FromHub(hub)
	}
	if v.FromHub == nil {
		return named(obj, f.Kind), nil
	}
	out, err := v.FromHub(obj.DeepCopyObject().(resource.Object))
	if err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(f.Kind)
	return out, nil
}

// Convert converts obj, which is shared, to a version of its kind d.
func Convert(d *resource.Descriptor, gvk schema.GroupVersionKind, obj resource.Object) (runtime.Object, error) {
	v := d.Version(gvk.Version)
	if v == nil {
		return nil, fmt.Errorf("convert to %v: it is not served", gvk)
	}
	if v.FromHub == nil {
		return named(obj, gvk), nil
	}
	out, err := v.FromHub(obj.DeepCopyObject().(resource.Object))
	if err != nil {
		return nil, err
	}
	out.GetObjectKind().SetGroupVersionKind(gvk)
	return out, nil
}

// hub converts an object of the request's kind, which the caller owns, to the hub form.
func (q *Request) hub(u *unstructured.Unstructured) (resource.Object, error) {
	v := q.Descriptor.Version(u.GroupVersionKind().Version)
	if v == nil || u.GroupVersionKind().Group != q.Descriptor.Group {
		return nil, fmt.Errorf("request to convert CR from an invalid group/version: %s", u.GetAPIVersion()) // upstream's words
	}
	if v.ToHub == nil {
		return u, nil
	}
	return v.ToHub(u)
}

// restore converts an object in the form f to the request's own form. The caller owns obj.
func (q *Request) restore(obj resource.Object, f *Form) (resource.Object, error) {
	if !q.whole() {
		obj.GetObjectKind().SetGroupVersionKind(q.native)
		return obj, nil
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if u.GroupVersionKind().GroupVersion() == q.native.GroupVersion() {
			return obj, nil
		}
		hub, err := q.hub(u.DeepCopy())
		if err != nil {
			return nil, err
		}
		if v := q.Descriptor.Version(q.native.Version); v != nil && v.FromHub != nil {
			return v.FromHub(hub)
		}
		return hub, nil
	}
	v, err := q.version(f)
	if err != nil {
		return nil, err
	}
	if v.ToHub != nil {
		if obj, err = v.ToHub(obj.DeepCopyObject().(resource.Object)); err != nil {
			return nil, err
		}
	} else {
		obj = named(obj, q.native).(resource.Object)
	}
	obj.GetObjectKind().SetGroupVersionKind(q.native)
	return obj, nil
}

// Default fills in the defaults of an object in the form f.
func (q *Request) Default(obj resource.Object, f *Form) {
	if !q.whole() {
		if s := q.Descriptor.Subresource(q.Subresource); s != nil && s.Create != nil && s.Create.Default != nil {
			s.Create.Default(obj)
		}
		return
	}
	if v, err := q.version(f); err == nil && v.Default != nil {
		v.Default(obj)
	}
}

// Empty returns an empty object of the form f into which JSON can be decoded.
func (q *Request) Empty(like runtime.Object) resource.Object {
	if _, ok := like.(*unstructured.Unstructured); ok {
		return &unstructured.Unstructured{}
	}
	return reflect.New(reflect.TypeOf(like).Elem()).Interface().(resource.Object)
}

// named returns obj with its kind set; everything below it is shared.
func named(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	if obj == nil || obj.GetObjectKind().GroupVersionKind() == gvk {
		return obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		u = &unstructured.Unstructured{Object: shallow(u.Object)}
		u.SetGroupVersionKind(gvk)
		return u
	}
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	out := to.Interface().(runtime.Object)
	out.GetObjectKind().SetGroupVersionKind(gvk)
	return out
}

func shallow(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Library returns the request in the form v, in the type that the Kubernetes libraries take. The result is made once,
// for the goroutine that owns the request: the libraries compute values without locks.
func (q *Request) Library(v *Versioned) *admission.VersionedAttributes {
	if v.attributes == nil {
		v.attributes = &admission.VersionedAttributes{Attributes: q.Record(), VersionedKind: v.Kind}
		if v.Object != nil {
			v.attributes.VersionedObject = admission.NewLazyObject(v.Object)
		}
		if v.Old != nil {
			v.attributes.VersionedOldObject = admission.NewLazyObject(v.Old)
		}
	}
	return v.attributes
}

// Record returns the request in the type that the Kubernetes libraries take.
func (q *Request) Record() admission.Attributes {
	var obj, old, opts runtime.Object
	if o := q.Current(); o != nil {
		obj = o
	}
	if q.Old != nil {
		old = q.Old
	}
	if opts = q.Options; q.Operation == admit.Connect {
		obj, opts = opts, nil
	}
	return admission.NewAttributesRecord(obj, old, q.Kind(), q.Namespace, q.Name, q.Resource(), q.Subresource,
		admission.Operation(q.Operation), opts, q.DryRun, q.User)
}
