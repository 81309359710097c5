// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"errors"
	"fmt"
	"reflect"
	"weak"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// converter converts objects of a kind for the field manager of one of its versions.
//
// It handles three forms: the hub object, whose type meta may be empty; the object of a version; and the result of a
// merge, an unstructured object of a version.
type converter struct {
	d *resource.Descriptor
	v *resource.Version
}

// custom reports whether a kind's objects are unstructured.
func custom(d *resource.Descriptor) bool {
	hub := d.Hub()
	if hub == nil {
		return false
	}
	_, ok := hub.New().(*unstructured.Unstructured)
	return ok
}

// live returns the object before the write: in the version of the write if that is deferred, or an empty object if
// there is none.
func (c *converter) live(obj resource.Object) (resource.Object, error) {
	if obj != nil && c.v.Deferred {
		in, err := c.to(obj, schema.GroupVersion{Group: c.d.Group, Version: c.v.Name})
		if err != nil {
			return nil, err
		}
		return in.(resource.Object), nil
	}
	if obj != nil {
		return obj, nil
	}
	empty := c.v.New()
	if c.v.ToHub == nil || c.v.Deferred {
		return empty, nil
	}
	hub, err := c.v.ToHub(empty)
	if err != nil {
		return nil, fmt.Errorf("convert empty %s: %w", c.d.Kind, err)
	}
	if !custom(c.d) { // without the defaults of the conversion: the writer owns those fields
		hub = reflect.New(reflect.TypeOf(hub).Elem()).Interface().(resource.Object)
	}
	return hub, nil
}

// hub converts the result of an apply to the form that verbs use: a hub object, unless the version is deferred.
func (c *converter) hub(obj runtime.Object) (resource.Object, error) {
	o, ok := obj.(resource.Object)
	if !ok {
		return nil, fmt.Errorf("apply made a %T", obj)
	}
	if c.v.ToHub != nil && !c.v.Deferred && isVersion(c.d, c.v, o) {
		var err error
		if o, err = c.v.ToHub(o); err != nil {
			return nil, fmt.Errorf("convert %s: %w", c.d.Kind, err)
		}
	}
	if !custom(c.d) {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return o, nil
}

// isVersion reports whether obj is in the form of v rather than the hub's. Only asked of versions that are not the hub.
func isVersion(d *resource.Descriptor, v *resource.Version, obj runtime.Object) bool {
	if custom(d) {
		return obj.GetObjectKind().GroupVersionKind().Version == v.Name
	}
	return reflect.TypeOf(obj) == reflect.TypeOf(v.New()) && (v.Name != d.Storage || reflect.TypeOf(obj) != reflect.TypeOf(hubOf(v)))
}

// hubOf returns an empty hub object.
func hubOf(v *resource.Version) resource.Object {
	o, err := v.ToHub(v.New())
	if err != nil {
		return nil
	}
	return o
}

// to converts obj to a version, without changing obj. If no conversion is needed, the result shares memory with obj and
// is read-only.
func (c *converter) to(obj runtime.Object, gv schema.GroupVersion) (runtime.Object, error) {
	target := c.d.Version(gv.Version)
	if target == nil || gv.Group != c.d.Group {
		if custom(c.d) { // an entry of an unregistered version would invalidate all entries
			return nil, fmt.Errorf("convert %s to %s: not a version of it", c.d.Kind, gv)
		}
		return nil, runtime.NewNotRegisteredErrForKind("managed fields", gv.WithKind(c.d.Kind))
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && !custom(c.d) {
		typed, err := c.typed(u)
		if err != nil {
			return nil, err
		}
		obj = typed
	}
	o, ok := obj.(resource.Object)
	if !ok {
		return nil, fmt.Errorf("convert %T: not an API object", obj)
	}
	from := c.from(o)
	if from == target {
		return withKind(o, gv.WithKind(c.d.Kind)), nil
	}
	o = o.DeepCopyObject().(resource.Object)
	var err error
	if from != nil && from.ToHub != nil {
		if o, err = from.ToHub(o); err != nil {
			return nil, fmt.Errorf("convert from version %s: %w", from.Name, err)
		}
	}
	if target.FromHub != nil {
		if o, err = target.FromHub(o); err != nil {
			return nil, fmt.Errorf("convert to version %s: %w", target.Name, err)
		}
	}
	return withKind(o, gv.WithKind(c.d.Kind)), nil
}

// from returns the version in whose form obj is; nil: it is the hub form, and no version has that form.
func (c *converter) from(obj resource.Object) *resource.Version {
	for i := range c.d.Versions {
		v := &c.d.Versions[i]
		if v.ToHub != nil && isVersion(c.d, v, obj) {
			return v
		}
	}
	if hub := c.d.Hub(); hub != nil && hub.ToHub == nil {
		return hub
	}
	return nil
}

// typed converts an unstructured object to its version's Go type.
func (c *converter) typed(u *unstructured.Unstructured) (resource.Object, error) {
	gvk := u.GroupVersionKind()
	v := c.d.Version(gvk.Version)
	if v == nil {
		return nil, runtime.NewNotRegisteredErrForKind("managed fields", gvk)
	}
	o := v.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, o); err != nil {
		return nil, fmt.Errorf("convert merged %s: %w", c.d.Kind, err)
	}
	return o, nil
}

// withKind returns a shallow copy of obj with its kind set.
func withKind(obj resource.Object, gvk schema.GroupVersionKind) resource.Object {
	if obj.GetObjectKind().GroupVersionKind() == gvk {
		return obj
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		shallow := make(map[string]any, len(u.Object)+2)
		for k, v := range u.Object {
			shallow[k] = v
		}
		obj = &unstructured.Unstructured{Object: shallow}
	} else {
		v := reflect.New(reflect.TypeOf(obj).Elem())
		v.Elem().Set(reflect.ValueOf(obj).Elem())
		obj = v.Interface().(resource.Object)
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	return obj
}

// weakConverter is a converter that does not keep its descriptor alive: field managers hold it, and are cached by
// descriptor.
type weakConverter struct {
	d       weak.Pointer[resource.Descriptor]
	version string
}

var errGone = errors.New("the kind is no longer served")

func (w weakConverter) get() (*converter, error) {
	d := w.d.Value()
	if d == nil {
		return nil, errGone
	}
	return &converter{d: d, v: d.Version(w.version)}, nil
}

// ConvertToVersion converts an object without changing it.
func (w weakConverter) ConvertToVersion(in runtime.Object, to runtime.GroupVersioner) (runtime.Object, error) {
	c, err := w.get()
	if err != nil {
		return nil, err
	}
	gv, ok := to.(schema.GroupVersion)
	if !ok {
		return nil, fmt.Errorf("convert to %v: not a version", to)
	}
	return c.to(in, gv)
}

// Convert is not used by field managers.
func (weakConverter) Convert(in, _, _ any) error { return fmt.Errorf("convert %T: unsupported", in) }

// ConvertFieldLabel is not used by field managers.
func (weakConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, _ string) (string, string, error) {
	return "", "", fmt.Errorf("convert field label %q: unsupported", label)
}

// Default applies the defaults to a merged configuration.
func (w weakConverter) Default(in runtime.Object) {
	c, err := w.get()
	if err != nil {
		return
	}
	if o, ok := in.(resource.Object); ok && c.v.Default != nil {
		c.v.Default(o)
	}
}

// New returns an empty object.
func (w weakConverter) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	c, err := w.get()
	if err != nil {
		return nil, err
	}
	o := c.v.New()
	if _, ok := o.(metav1.Object); !ok {
		return nil, runtime.NewNotRegisteredErrForKind("managed fields", gvk)
	}
	return c.live(nil)
}
