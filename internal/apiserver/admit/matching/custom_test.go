// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// widgets returns a custom kind in v1, which is the hub, and in v2 and v3, which are converted. A converted object
// lists its conversions in "by".
func widgets() *resource.Descriptor {
	to := func(version, way string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			u := obj.(*unstructured.Unstructured)
			if u.GetName() == "bad "+way {
				return nil, errors.New("no such form")
			}
			u.SetAPIVersion("example.com/" + version)
			by, _, _ := unstructured.NestedString(u.Object, "by")
			u.Object["by"] = strings.TrimSpace(by + " " + way)
			return u, nil
		}
	}
	return &resource.Descriptor{
		Group: "example.com", Resource: "widgets", Kind: "Widget", Namespaced: true, Storage: "v1", Prefix: "widgets",
		Versions: []resource.Version{
			{Name: "v1"},
			{Name: "v2", FromHub: to("v2", "1>2"), ToHub: to("v1", "2>1")},
			{Name: "v3", FromHub: to("v3", "1>3"), ToHub: to("v1", "3>1")},
		},
	}
}

func widget(version, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": "Widget",
		"metadata": map[string]any{"name": name}}}
}

func widgetForm(version string) *Form {
	return &Form{
		Resource: schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"},
		Kind:     schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"},
	}
}

func said(obj runtime.Object) string {
	u := obj.(*unstructured.Unstructured)
	by, _, _ := unstructured.NestedString(u.Object, "by")
	return strings.TrimSpace(u.GetAPIVersion() + " " + by)
}

// TestCustomForms converts custom objects to another version through the hub, and a mutated one back to the request's
// version.
func TestCustomForms(t *testing.T) {
	for _, c := range []struct{ own, form, want, back string }{
		{"v1", "v1", "example.com/v1", "example.com/v1"},
		{"v1", "v2", "example.com/v2 1>2", "example.com/v1 1>2 2>1"},
		{"v2", "v2", "example.com/v2", "example.com/v2"},
		{"v2", "v1", "example.com/v1 2>1", "example.com/v2 2>1 1>2"},
		{"v2", "v3", "example.com/v3 2>1 1>3", "example.com/v2 2>1 1>3 3>1 1>2"},
	} {
		obj, old := widget("example.com/"+c.own, "w"), widget("example.com/"+c.own, "w")
		a := &admit.Attributes{Operation: admit.Update, Descriptor: widgets(), Version: c.own, Name: "w", Object: obj, Old: old}
		q := NewRequest(&admit.Host{}, nil, a)
		v, err := q.In(t.Context(), widgetForm(c.form))
		if err != nil || said(v.Object) != c.want || said(v.Old) != c.want {
			t.Errorf("%s as %s: %v, %v, %v", c.own, c.form, v.Object, v.Old, err)
			continue
		}
		if said(obj) != "example.com/"+c.own || said(old) != "example.com/"+c.own {
			t.Errorf("%s as %s: a shared object was changed: %v, %v", c.own, c.form, obj, old)
		}
		changed := v.Object.(*unstructured.Unstructured).DeepCopy()
		changed.SetLabels(map[string]string{"a": "b"})
		q.Change(v, changed)
		if err := q.Settle(); err != nil || said(a.Object) != c.back || a.Object.GetLabels()["a"] != "b" {
			t.Errorf("%s by way of %s: %v, %v", c.own, c.form, a.Object, err)
		}
	}
}

// TestCustomObjectsThatCannotBeConverted covers objects of another group or version, and failed conversions.
func TestCustomObjectsThatCannotBeConverted(t *testing.T) {
	const other = "request to convert CR from an invalid group/version: "
	for _, c := range []struct {
		obj  *unstructured.Unstructured
		want string
	}{
		{widget("example.com/v9", "w"), other + "example.com/v9"},
		{widget("example.org/v1", "w"), other + "example.org/v1"},
		{widget("example.com/v2", "bad 2>1"), "no such form"},
		{widget("example.com/v2", "bad 1>3"), "no such form"},
	} {
		a := &admit.Attributes{Operation: admit.Create, Descriptor: widgets(), Version: "v3", Object: c.obj}
		v, err := NewRequest(&admit.Host{}, nil, a).In(t.Context(), widgetForm("v3"))
		if err == nil || err.Error() != c.want || v != nil {
			t.Errorf("%v as v3: %v, %v", c.obj.Object, v, err)
		}
		a.Object = widget("example.com/v3", "w")
		q := NewRequest(&admit.Host{}, nil, a)
		q.Change(&Versioned{Form: *widgetForm("v2")}, c.obj)
		if err := q.Settle(); err == nil || err.Error() != c.want {
			t.Errorf("%v back as v3: %v, %v", c.obj.Object, a.Object, err)
		}
	}
}

// TestConvert converts objects of any kind to one of their versions. Shared objects stay unchanged.
func TestConvert(t *testing.T) {
	d, _ := deployments()
	for _, c := range []struct {
		d       *resource.Descriptor
		obj     resource.Object
		group   string
		version string
		want    string
	}{
		{d, deployment("d"), "apps", "v1", "apps/v1 Deployment d map[]"},
		{d, deployment("d"), "apps", "v1beta1", "apps/v1beta1 Deployment d map[form:v1beta1]"},
		{d, deployment("bad"), "apps", "v1beta1", "no such form"},
		{d, deployment("d"), "apps", "v9", "convert to apps/v9, Kind=Deployment: it is not served"},
		{widgets(), widget("example.com/v1", "w"), "example.com", "v2", "example.com/v2 Deployment w map[]"},
		{widgets(), widget("other/v7", "w"), "example.com", "v1", "example.com/v1 Deployment w map[]"},
	} {
		before := c.obj.DeepCopyObject()
		obj, err := Convert(c.d, schema.GroupVersionKind{Group: c.group, Version: c.version, Kind: "Deployment"}, c.obj)
		got := fmt.Sprint(err)
		if err == nil {
			version, kind := obj.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
			got = fmt.Sprint(version, " ", kind, " ", obj.(metav1.Object).GetName(), " ", obj.(metav1.Object).GetAnnotations())
		}
		if got != c.want {
			t.Errorf("%s %s: got %s, want %s", c.obj.GetName(), c.version, got, c.want)
		}
		if fmt.Sprint(before) != fmt.Sprint(c.obj) {
			t.Errorf("%s %s: the object was changed: %v", c.obj.GetName(), c.version, c.obj)
		}
	}
}

// TestEmpty checks that JSON of a custom object is decoded to an unstructured object, and other JSON to its Go type.
func TestEmpty(t *testing.T) {
	q := requestOf(asked(), nil)
	for _, like := range []resource.Object{deployment("d"), widget("example.com/v1", "w")} {
		got := q.Empty(like)
		if fmt.Sprintf("%T", got) != fmt.Sprintf("%T", like) || got.GetName() != "" {
			t.Errorf("%T: %T %v", like, got, got)
		}
	}
}

// TestDefaultsOfSubresources checks that a created subresource gets its own defaults, if it has any.
func TestDefaultsOfSubresources(t *testing.T) {
	own := &resource.Create{Default: func(obj resource.Object) { obj.SetGenerateName("by the subresource") }}
	for _, c := range []struct {
		create *resource.Create
		name   string
		want   string
	}{
		{own, "scale", "by the subresource"}, {&resource.Create{}, "scale", ""}, {nil, "scale", ""}, {own, "status", "filled in"}, {own, "none",
			"filled in"},
	} {
		a := asked()
		a.Descriptor.Subresources[1].Create, a.Subresource = c.create, c.name
		q, obj := requestOf(a, nil), deployment("d")
		q.Default(obj, &Form{Resource: a.Resource()})
		if obj.GenerateName != c.want {
			t.Errorf("%s: filled in %q, want %q", c.name, obj.GenerateName, c.want)
		}
	}
}
