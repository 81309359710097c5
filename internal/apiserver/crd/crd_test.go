// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/resource"
)

// definition decodes a definition as its create would store it, without accepted names.
func definition(t testing.TB, name string) *v1.CustomResourceDefinition {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	d := &v1.CustomResourceDefinition{}
	if err := json.Unmarshal(b, d); err != nil {
		t.Fatal(err)
	}
	kind := Definitions()
	kind.Versions[0].Default(d)
	kind.Strategy.PrepareCreate(context.Background(), d)
	if errs := kind.Strategy.Validate(context.Background(), d); len(errs) > 0 {
		t.Fatal(errs)
	}
	return d
}

func compile(t testing.TB, name string) *resource.Descriptor {
	t.Helper()
	d, err := Compile(definition(t, name), nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func object(t testing.TB, data []byte) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func in(version string) context.Context {
	return request.WithRequestInfo(context.Background(), &request.RequestInfo{APIGroup: "dlg.example.com", APIVersion: version})
}

// create processes a body as the server does, up to the store.
func create(ctx context.Context, d *resource.Descriptor, version string, u *unstructured.Unstructured) (resource.Object, []string, error) {
	v := d.Version(version)
	if err := v.Coerce(u); err != nil {
		return nil, nil, err
	}
	unknown := v.Prune(u)
	v.Default(u)
	var hub resource.Object = u
	if v.ToHub != nil {
		var err error
		if hub, err = v.ToHub(u); err != nil {
			return nil, nil, err
		}
	}
	hub.SetNamespace("dialogue")
	d.Strategy.PrepareCreate(ctx, hub)
	if errs := d.Strategy.Validate(ctx, hub); len(errs) > 0 {
		return nil, unknown, apierrors.NewInvalid(d.GroupVersionKind(version).GroupKind(), hub.GetName(), errs)
	}
	return hub, unknown, nil
}

// TestCreates validates objects by the recorded definition, and compares the errors with those of kube-apiserver
// 1.37.1.
func TestCreates(t *testing.T) {
	d := compile(t, "gadget")
	b, err := os.ReadFile("testdata/creates.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name, Version, Message, Path string
		Object                       json.RawMessage
		Status                       int
		Causes                       []any
		Result                       map[string]any
		Generation                   int64
	}
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 20 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		if c.Status != 422 && c.Status != 201 {
			continue // rejected by the decoder
		}
		t.Run(c.Name, func(t *testing.T) {
			hub, _, err := create(in(c.Version), d, c.Version, object(t, c.Object))
			if c.Status == 422 {
				status, ok := err.(*apierrors.StatusError)
				if !ok {
					t.Fatalf("got %v, want it refused", err)
				}
				var got []any
				raw, err := json.Marshal(status.ErrStatus.Details.Causes)
				if err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal(raw, &got); err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(c.Causes, got); d != "" {
					t.Error(d)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if hub.GetGeneration() != c.Generation {
				t.Errorf("generation %d, want %d", hub.GetGeneration(), c.Generation)
			}
			if f := d.Version(c.Version).FromHub; f != nil {
				if hub, err = f(hub); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := json.Marshal(hub.(*unstructured.Unstructured).Object)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			delete(got, "metadata")
			if d := cmp.Diff(c.Result, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestUnknownFieldsAreNamed(t *testing.T) {
	d := compile(t, "crontab")
	u := object(t, []byte(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a","zzz":1},"spec":{"image":"i","nope":1},"extra":{}}`))
	unknown := d.Versions[0].Prune(u)
	if diff := cmp.Diff([]string{"metadata.zzz", "extra", "spec.nope"}, unknown); diff != "" {
		t.Error(diff)
	}
	want := map[string]any{"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"image": "i"}}
	if diff := cmp.Diff(want, u.Object); diff != "" {
		t.Error(diff)
	}
}

func TestCoerceRefusesWrongMetadata(t *testing.T) {
	d := compile(t, "crontab")
	for _, body := range []string{`{"metadata":{"labels":{"a":1}}}`, `{"metadata":{"name":3}}`, `{"metadata":{"finalizers":"x"}}`} {
		if err := d.Versions[0].Coerce(object(t, []byte(body))); err == nil {
			t.Errorf("%s: accepted", body)
		}
	}
	if err := d.Versions[0].Coerce(object(t, []byte(`{"metadata":{"name":"a","finalizers":["x/y"],"labels":{"a":"b"}}}`))); err != nil {
		t.Error(err)
	}
}

func TestStatusAndGeneration(t *testing.T) {
	d := compile(t, "gadget")
	ctx := in("v1")
	old := object(t, []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g","generation":4,"resourceVersion":"7"},"spec":{"size":3},"status":{"ready":1}}`))
	set := func(spec, status int64) *unstructured.Unstructured {
		u := old.DeepCopy()
		u.Object["spec"] = map[string]any{"size": spec}
		u.Object["status"] = map[string]any{"ready": status}
		return u
	}
	spec := set(5, 9)
	d.Strategy.PrepareUpdate(ctx, spec, old)
	if got, _, _ := unstructured.NestedInt64(spec.Object, "status", "ready"); got != 1 || spec.GetGeneration() != 5 {
		t.Errorf("update of spec: status %d, generation %d", got, spec.GetGeneration())
	}
	same := set(3, 9)
	d.Strategy.PrepareUpdate(ctx, same, old)
	if same.GetGeneration() != 4 {
		t.Errorf("update of nothing: generation %d", same.GetGeneration())
	}
	status := set(5, 9)
	d.Subresource("status").Strategy.PrepareUpdate(ctx, status, old)
	ready, _, _ := unstructured.NestedInt64(status.Object, "status", "ready")
	size, _, _ := unstructured.NestedInt64(status.Object, "spec", "size")
	if ready != 9 || size != 3 || status.GetGeneration() != 4 {
		t.Errorf("update of status: %v", status.Object)
	}
	if errs := d.Strategy.ValidateUpdate(ctx, set(11, 1), old); len(errs) != 1 {
		t.Errorf("size 11: %v", errs)
	}
	wrong := old.DeepCopy()
	wrong.Object["spec"] = map[string]any{"size": int64(12)}
	if errs := d.Strategy.ValidateUpdate(ctx, wrong.DeepCopy(), wrong); len(errs) != 0 {
		t.Errorf("an unchanged fault is let pass: %v", errs)
	}
}

func TestScale(t *testing.T) {
	d := compile(t, "gadget")
	u := object(t, []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3},"status":{"ready":2,"sel":"a=b"}}`))
	view := d.Subresource("scale").View
	got, err := view.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	s := got.(*autoscalingv1.Scale)
	if s.Spec.Replicas != 3 || s.Status.Replicas != 2 || s.Status.Selector != "a=b" {
		t.Errorf("scale %+v", s)
	}
	none := object(t, []byte(`{"metadata":{"name":"g"},"spec":{}}`))
	if _, err := view.Get(none); !apierrors.IsInternalError(err) {
		t.Errorf("get without replicas: %v", err)
	}
	begun, err := view.Edit(none)
	if err != nil {
		t.Fatal(err)
	}
	if err := view.Set(begun, none); !apierrors.IsBadRequest(err) {
		t.Errorf("set of nothing: %v", err)
	}
	s.Spec.Replicas = 7
	if err := view.Set(s, u); err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(u.Object, "spec", "size"); size != 7 {
		t.Errorf("size %d", size)
	}
}

func TestColumnsAndFields(t *testing.T) {
	d := compile(t, "gadget")
	u := object(t, []byte(`{"metadata":{"name":"g","creationTimestamp":"x"},"spec":{"size":3.0,"mode":"b"}}`))
	cells, err := d.Versions[0].Columns.Cells(u)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"g", int64(3), "b", "<invalid>"}, cells); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"spec.mode"}, d.FieldNames); diff != "" {
		t.Error(diff)
	}
	if got := d.Fields(u)["spec.mode"]; got != "b" {
		t.Errorf("spec.mode is %q", got)
	}
	if got := d.Fields(object(t, []byte(`{}`)))["spec.mode"]; got != "" {
		t.Errorf("absent spec.mode is %q", got)
	}
}

// A field is selectable only in the versions that list it, though the kind as a whole knows it.
func TestSelectableFieldsAreAVersions(t *testing.T) {
	def := definition(t, "gadget")
	for i := range def.Spec.Versions {
		if def.Spec.Versions[i].Name == "v1beta1" {
			def.Spec.Versions[i].SelectableFields = nil
		}
	}
	d, err := Compile(def, nil)
	if err != nil {
		t.Fatal(err)
	}
	if label, value, err := d.Version("v1").FieldLabel("spec.mode", "b"); label != "spec.mode" || value != "b" || err != nil {
		t.Error(label, value, err)
	}
	if _, _, err := d.Version("v1beta1").FieldLabel("spec.mode", "b"); err == nil || err.Error() != "field label not supported: spec.mode" {
		t.Error(err)
	}
	if _, _, err := d.Version("v1beta1").FieldLabel("metadata.name", "b"); err != nil {
		t.Error(err)
	}
}

// Checking the metadata of embedded objects does not drop its unknown fields.
func TestUnknownFieldsOfEmbeddedObjectsAreNamed(t *testing.T) {
	d := compile(t, "gadget")
	v := d.Version("v1")
	u := object(t, []byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"a"},"spec":{"embed":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","zzz":1}}}}`))
	if err := v.Coerce(u); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"spec.embed.metadata.zzz"}, v.Prune(u)); diff != "" {
		t.Error(diff)
	}
}

// The same definition with other white space is unchanged.
func TestGenerationIsOfMeaning(t *testing.T) {
	update := Definitions().Strategy.PrepareUpdate
	for raw, want := range map[string]int64{`{"a": 1}`: 1, `{"a":1}`: 1, `{"a":2}`: 2} {
		old := definition(t, "gadget")
		props := old.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
		spec := props["spec"]
		spec.Default = &v1.JSON{Raw: []byte(`{"a":1}`)}
		props["spec"] = spec
		obj := old.DeepCopy()
		spec.Default = &v1.JSON{Raw: []byte(raw)}
		obj.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		update(t.Context(), obj, old)
		if obj.Generation != want {
			t.Errorf("%s: generation %d, want %d", raw, obj.Generation, want)
		}
	}
}

func TestVersionsInOrder(t *testing.T) {
	d := compile(t, "gadget")
	if d.Versions[0].Name != "v1" || d.Versions[1].Name != "v1beta1" || d.Hub().Name != "v1" {
		t.Errorf("versions %v, %v", d.Versions[0].Name, d.Versions[1].Name)
	}
	if d.Versions[1].Deprecation != "use v1" {
		t.Errorf("deprecation %q", d.Versions[1].Deprecation)
	}
}

func TestCodecReadsOlderVersions(t *testing.T) {
	d := compile(t, "gadget")
	obj, err := d.Codec.Decode([]byte(`{"apiVersion":"dlg.example.com/v1beta1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3,"gone":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"apiVersion": "dlg.example.com/v1", "kind": "Gadget", "metadata": map[string]any{"name": "g"},
		"spec": map[string]any{"size": int64(3), "mode": "a", "nest": map[string]any{"deep": int64(7)}}}
	if diff := cmp.Diff(want, obj.(*unstructured.Unstructured).Object); diff != "" {
		t.Error(diff)
	}
	b, err := d.Codec.Encode(obj)
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.Codec.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(obj, again); diff != "" {
		t.Error(diff)
	}
}

func FuzzDecode(f *testing.F) {
	d := compile(f, "gadget")
	f.Add([]byte(`{"apiVersion":"dlg.example.com/v1beta1","kind":"Gadget","metadata":{"name":"g"},"spec":{"size":3,"gone":1,"parts":[{"key":"a"}]}}`))
	f.Add([]byte(`{"apiVersion":"dlg.example.com/v1","metadata":null,"spec":{"nest":null,"embed":{"metadata":{"x":1}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := d.Codec.Decode(data)
		if err != nil {
			return
		}
		b, err := d.Codec.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		again, err := d.Codec.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(obj, again) { // cheaper for a fuzzing run than an empty diff
			t.Errorf("not the same after storing: %s", cmp.Diff(obj, again))
		}
	})
}

// FuzzPruneDefault checks that pruning and defaulting twice equals once.
func FuzzPruneDefault(f *testing.F) {
	d := compile(f, "gadget")
	f.Add([]byte(`{"apiVersion":"dlg.example.com/v1","kind":"Gadget","metadata":{"name":"g","labels":{"a":null}},"spec":{"nest":null,"maybe":null,"parts":[{},{"key":null,"x":1}]}}`))
	f.Add([]byte(`{"metadata":{"creationTimestamp":null,"ownerReferences":[{"zz":1}]},"spec":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		u := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(data, &u.Object); err != nil || u.Object == nil {
			return
		}
		v := d.Versions[0]
		if err := v.Coerce(u); err != nil {
			return
		}
		v.Prune(u)
		v.Default(u)
		once := u.DeepCopy()
		if unknown := v.Prune(u); len(unknown) > 0 {
			t.Errorf("unknown after pruning: %v", unknown)
		}
		v.Default(u)
		if !reflect.DeepEqual(once.Object, u.Object) {
			t.Error(cmp.Diff(once.Object, u.Object))
		}
	})
}
