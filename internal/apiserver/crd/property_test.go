// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/resource"
)

// -rapid.checks=N runs more cases in these tests; -rapid.seed repeats a failure.

// library processes objects with apiextensions-apiserver's libraries, without this package.
type library struct {
	props      *apiextensions.JSONSchemaProps
	structural *structuralschema.Structural
	schema     schemavalidation.SchemaValidator
	rules      *cel.Validator
}

// randomDefinition returns a definition that upstream's validation accepts, with both implementations.
func randomDefinition(t *rapid.T) (shapeOf, *resource.Descriptor, *library) {
	root := shapeOf{"type": "object", "properties": shapeOf{"spec": randomObject(t, 3), "more": randomSchema(t, 2)}}
	if chance(t, 30) {
		root["properties"].(shapeOf)["metadata"] = shapeOf{"type": "object",
			"properties": shapeOf{"name": shapeOf{"type": "string", "maxLength": 5}}}
	}
	if chance(t, 15) {
		root["x-kubernetes-preserve-unknown-fields"] = true
	}
	raw, err := json.Marshal(shapeOf{
		"metadata": shapeOf{"name": "things.example.com"},
		"spec": shapeOf{
			"group": "example.com", "scope": "Namespaced", "names": shapeOf{"plural": "things", "singular": "thing", "kind": "Thing",
				"listKind": "ThingList"},
			"versions": []any{shapeOf{"name": "v1", "served": true, "storage": true, "schema": shapeOf{"openAPIV3Schema": root}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	def := &v1.CustomResourceDefinition{}
	if err := json.Unmarshal(raw, def); err != nil {
		t.Fatal(err)
	}
	kind := Definitions()
	kind.Versions[0].Default(def)
	kind.Strategy.PrepareCreate(context.Background(), def)

	said := kind.Strategy.Validate(context.Background(), def)
	theirs := &apiextensions.CustomResourceDefinition{}
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(def.DeepCopy(), theirs, nil); err != nil {
		t.Fatal(err)
	}
	same(t, "the definition itself", crdvalidation.ValidateCustomResourceDefinition(context.Background(), theirs), said)
	if len(said) > 0 {
		t.Skip("not a definition: " + said.ToAggregate().Error())
	}

	// A pool that is almost too small recomputes everything again and again.
	d, err := compileWith(def, nil, newSchemas(int64(rapid.SampledFrom([]int{1, 64 << 10, 1 << 20}).Draw(t, "room"))))
	if err != nil {
		t.Fatalf("accepted, and not compiled: %v\n%s", err, raw)
	}
	return root, d, newLibrary(t, def.DeepCopy())
}

func newLibrary(t *rapid.T, def *v1.CustomResourceDefinition) *library {
	theirs := &apiextensions.CustomResourceDefinition{}
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(def, theirs, nil); err != nil {
		t.Fatal(err)
	}
	s, err := apiextensions.GetSchemaForVersion(theirs, "v1")
	if err != nil {
		t.Fatal(err)
	}
	l := &library{props: s.OpenAPIV3Schema}
	if l.structural, err = structuralschema.NewStructural(l.props); err != nil {
		t.Fatal(err)
	}
	if err := defaulting.PruneDefaults(l.structural); err != nil {
		t.Fatal(err)
	}
	if l.schema, _, err = schemavalidation.NewSchemaValidator(l.props); err != nil {
		t.Fatal(err)
	}
	l.rules = cel.NewValidator(l.structural, true, celconfig.PerCallLimit)
	return l
}

// read processes an object as upstream's decoder does, without shortcuts.
func (l *library) read(u *unstructured.Unstructured) (unknown []string, err error) {
	if _, _, _, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{}); err != nil {
		return nil, err
	}
	if err, _ := objectmeta.CoerceWithOptions(nil, u.DeepCopy().Object, l.structural, false, objectmeta.CoerceOptions{}); err != nil {
		return nil, err
	}
	meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object,
		objectmeta.ObjectMetaOptions{DropMalformedFields: true, ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, err
	}
	unknown = append(unknown, paths...)
	unknown = append(unknown, pruning.PruneWithOptions(u.Object, l.structural, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, l.structural)
	if e, paths := objectmeta.CoerceWithOptions(nil, u.Object, l.structural, false,
		objectmeta.CoerceOptions{DropInvalidFields: true, ReturnUnknownFieldPaths: true}); e != nil {
		return nil, e
	} else {
		unknown = append(unknown, paths...)
	}
	if found {
		if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
			return nil, err
		}
	}
	defaulting.Default(u.Object, l.structural)
	return unknown, nil
}

func (l *library) rulesOn(errs field.ErrorList, u, old *unstructured.Unstructured, pair *common.CorrelatedObject) field.ErrorList {
	if l.rules == nil {
		return errs
	}
	blocking := []field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
		field.ErrorTypeTypeInvalid}
	if slices.ContainsFunc(errs, func(e *field.Error) bool { return slices.Contains(blocking, e.Type) }) {
		return append(errs, field.Invalid(nil, nil,
			"some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	var more field.ErrorList
	if old == nil {
		more, _ = l.rules.Validate(context.Background(), nil, l.structural, u.Object, nil, celconfig.RuntimeCELCostBudget)
	} else {
		more, _ = l.rules.Validate(context.Background(), nil, l.structural, u.Object, old.Object, celconfig.RuntimeCELCostBudget,
			cel.WithRatcheting(pair))
	}
	return append(errs, more...)
}

func (l *library) validate(u *unstructured.Unstructured) field.ErrorList {
	errs := schemavalidation.ValidateCustomResource(nil, u.Object, l.schema)
	errs = append(errs, objectmeta.Validate(context.Background(), nil, u.Object, l.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, l.structural, u.Object)...)
	return l.rulesOn(errs, u, nil, nil)
}

func (l *library) validateUpdate(u, old *unstructured.Unstructured) field.ErrorList {
	pair := common.NewCorrelatedObject(u.Object, old.Object, &model.Structural{Structural: l.structural})
	errs := schemavalidation.ValidateCustomResourceUpdate(nil, u.Object, old.Object, l.schema, schemavalidation.WithRatcheting(pair))
	errs = append(errs, objectmeta.Validate(context.Background(), nil, u.Object, l.structural, false)...)
	if len(listtype.ValidateListSetsAndMaps(nil, l.structural, old.Object)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, l.structural, u.Object)...)
	}
	return l.rulesOn(errs, u, old, pair)
}

// same compares all errors regardless of their order, because maps have none.
func same(t *rapid.T, what string, want, got field.ErrorList) {
	list := func(errs field.ErrorList) []string {
		out := []string{}
		for _, e := range errs {
			value, err := json.Marshal(e.BadValue)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s | %s | %T %s | %s", e.Type, e.Field, e.BadValue, value, e.Detail))
		}
		slices.Sort(out)
		return out
	}
	if diff := cmp.Diff(list(want), list(got)); diff != "" {
		t.Fatalf("%s: (-library +here)\n%s", what, diff)
	}
}

// decoded returns content as the server decodes it.
func decoded(t *rapid.T, content any) *unstructured.Unstructured {
	raw, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(raw, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func randomThing(t *rapid.T, root shapeOf, good int) shapeOf {
	out, ok := randomValue(t, root, 100).(shapeOf)
	if !ok {
		out = shapeOf{}
	}
	for name, s := range root["properties"].(shapeOf) {
		if name != "metadata" && chance(t, 80) {
			out[name] = randomValue(t, s.(shapeOf), good)
		}
	}
	out["apiVersion"], out["kind"], out["metadata"] = "example.com/v1", "Thing", randomMeta(t, good)
	return out
}

// readBoth reads an object with both implementations, and compares the results.
func readBoth(t *rapid.T, d *resource.Descriptor, l *library, content shapeOf) (mine, theirs *unstructured.Unstructured) {
	mine, theirs = decoded(t, content), decoded(t, content)
	v := d.Version("v1")
	wantUnknown, wantErr := l.read(theirs)
	err := v.Coerce(mine)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("refused: here %v, library %v", err, wantErr)
	}
	if err != nil {
		// Of several invalid fields the library reports the first one in the random order of a map.
		for range 200 {
			if err.Error() == wantErr.Error() {
				return nil, nil
			}
			if _, wantErr = l.read(decoded(t, content)); wantErr == nil {
				break
			}
		}
		t.Fatalf("refused: here %v, library %v", err, wantErr)
	}
	unknown := v.Prune(mine)
	v.Default(mine)
	slices.Sort(unknown)
	slices.Sort(wantUnknown)
	if diff := cmp.Diff(append([]string{}, wantUnknown...), append([]string{}, unknown...)); diff != "" {
		t.Fatalf("unknown fields (-library +here):\n%s", diff)
	}
	// The shortcut does not change the metadata; the complete check adds a null creationTimestamp.
	if diff := cmp.Diff(plain(theirs), plain(mine)); diff != "" {
		t.Fatalf("read (-library +here):\n%s", diff)
	}
	return mine, theirs
}

func plain(u *unstructured.Unstructured) map[string]any {
	c := u.DeepCopy()
	if m, ok := c.Object["metadata"].(map[string]any); ok && m["creationTimestamp"] == nil {
		delete(m, "creationTimestamp")
	}
	return c.Object
}

// TestReadingTwiceIsReadingOnce prunes and defaults a result again, also after storing it.
func TestReadingTwiceIsReadingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root, d, l := randomDefinition(t)
		v := d.Version("v1")
		for range 4 {
			u, _ := readBoth(t, d, l, randomThing(t, root, 90))
			if u == nil {
				continue
			}
			once := u.DeepCopy()
			if unknown := v.Prune(u); len(unknown) > 0 {
				t.Fatalf("pruned twice: %v", unknown)
			}
			v.Default(u)
			if diff := cmp.Diff(once.Object, u.Object); diff != "" {
				t.Fatalf("read twice (-once +twice):\n%s", diff)
			}
			raw, err := d.Codec.Encode(once)
			if err != nil {
				t.Fatal(err)
			}
			back, err := d.Codec.Decode(raw)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(once.Object, back.(*unstructured.Unstructured).Object); diff != "" {
				t.Fatalf("stored and read (-before +after):\n%s", diff)
			}
		}
	})
}

// TestValidatesAsTheLibrary compares the errors of new objects, and of updates of valid and invalid objects.
func TestValidatesAsTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		root, d, l := randomDefinition(t)
		ctx := in("v1")
		for range 3 {
			content := randomThing(t, root, oneOf(t, 85, 97, 100))
			content["metadata"] = shapeOf{"name": "thing", "namespace": "n"}
			mine, theirs := readBoth(t, d, l, content)
			if mine == nil {
				continue
			}
			same(t, "create", l.validate(theirs), d.Strategy.Validate(ctx, mine))

			next, ok := changed(t, root, map[string]any(content), oneOf(t, 80, 97, 100)).(shapeOf)
			if !ok {
				next = shapeOf{}
			}
			next["apiVersion"], next["kind"] = "example.com/v1", "Thing"
			next["metadata"] = shapeOf{"name": "thing", "namespace": "n", "resourceVersion": "1"}
			mineNext, theirsNext := readBoth(t, d, l, next)
			if mineNext == nil {
				continue
			}
			for _, u := range []*unstructured.Unstructured{mine, theirs} {
				u.SetResourceVersion("1")
			}
			same(t, "update", l.validateUpdate(theirsNext, theirs), d.Strategy.ValidateUpdate(ctx, mineNext, mine))
		}
	})
}
