// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// nullables defines Widgets in two versions with different schemas; v1 is stored.
func nullables() *apiextensionsv1.CustomResourceDefinition {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	open := text
	open.Nullable = true
	filled := text
	filled.Default = &apiextensionsv1.JSON{Raw: []byte(`"filled"`)}
	fields := func(more ...string) map[string]apiextensionsv1.JSONSchemaProps {
		inner := map[string]apiextensionsv1.JSONSchemaProps{
			"s": text, "open": open, "filled": filled,
			"n":    {Type: "integer"},
			"o":    {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"s": text}},
			"list": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}},
			"map":  {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &text}},
		}
		for _, name := range more {
			inner[name] = text
		}
		return inner
	}
	version := func(name string, stored bool, more ...string) apiextensionsv1.CustomResourceDefinitionVersion {
		part := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: fields(more...)}
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: stored,
			Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": part, "status": part},
			}},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.null.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "null.example.com", Scope: apiextensionsv1.ClusterScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false, "more")},
		},
	}
}

// TestAppliedNulls applies null to fields of a custom resource, in a create and over a value: validation rejects it if
// the field is not nullable, and a default replaces it if there is one. A PUT drops the field.
func TestAppliedNulls(t *testing.T) {
	_, config := startControllers(t)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	definition, err := runtime.DefaultUnstructuredConverter.ToUnstructured(nullables())
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	if _, err := definitions.Create(ctx, &unstructured.Unstructured{Object: definition}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field       string
		value, null any
		want        string // the cause of the error; empty: the field is kept
		stays       any
	}{
		{field: "s", value: "a", want: `spec.s in body must be of type string: "null"`},
		{field: "n", value: int64(1), want: `spec.n in body must be of type integer: "null"`},
		{field: "o", value: map[string]any{"s": "a"}, want: `spec.o in body must be of type object: "null"`},
		{field: "o", value: map[string]any{"s": "a"}, null: map[string]any{"s": nil}, want: `spec.o.s in body must be of type string: "null"`},
		{field: "list", value: []any{"a"}, want: `spec.list in body must be of type array: "null"`},
		{field: "list", value: []any{"a"}, null: []any{"b", nil}, want: `spec.list[1] in body must be of type string: "null"`},
		{field: "map", value: map[string]any{"a": "a"}, null: map[string]any{"a": nil},
			want: `spec.map.a in body must be of type string: "null"`},
		{field: "open", value: "a"},
		{field: "filled", value: "a", stays: "filled"},
	} {
		for _, version := range []string{"v1", "v2"} {
			for _, part := range []string{"spec", "status"} {
				name := strings.Join([]string{c.field, version, part}, "-")
				if c.null != nil {
					name += "-within"
				}
				t.Run(name, func(t *testing.T) {
					widgets := client.Resource(schema.GroupVersionResource{Group: "null.example.com", Version: version, Resource: "widgets"})
					object := func(value any) *unstructured.Unstructured {
						return &unstructured.Unstructured{Object: map[string]any{
							"apiVersion": "null.example.com/" + version, "kind": "Widget", "metadata": map[string]any{"name": name},
							part: map[string]any{c.field: value},
						}}
					}
					o := metav1.ApplyOptions{FieldManager: "applier"}
					apply := func(value any) (*unstructured.Unstructured, error) {
						if part == "status" {
							return widgets.ApplyStatus(ctx, name, object(value), o)
						}
						return widgets.Apply(ctx, name, object(value), o)
					}
					check := func(when string, got *unstructured.Unstructured, err error) {
						t.Helper()
						want := c.want
						if part == "status" { // it is validated separately
							want = strings.TrimPrefix(want, "spec.")
						}
						switch {
						case want == "" && err != nil:
							t.Errorf("%s: %v", when, err)
						case want == "":
							content, _ := got.Object[part].(map[string]any)
							if stays, ok := content[c.field]; !ok || stays != c.stays {
								t.Errorf("%s: %s.%s is %v, want %v", when, part, c.field, stays, c.stays)
							}
						case !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), `Invalid value: "null": `+want):
							t.Errorf("%s: %v, want %s", when, err, want)
						}
					}
					if part == "status" {
						if _, err := widgets.Create(ctx, object(nil), metav1.CreateOptions{}); err != nil {
							t.Fatal(err)
						}
					} else {
						got, err := apply(c.null)
						check("the first apply", got, err)
					}
					if _, err := apply(c.value); err != nil {
						t.Fatal(err)
					}
					got, err := apply(c.null)
					check("an apply over a value", got, err)
					if part == "status" || c.null != nil || c.want == "" {
						return
					}
					if got, err = widgets.Get(ctx, name, metav1.GetOptions{}); err != nil {
						t.Fatal(err)
					}
					got.Object["spec"] = map[string]any{c.field: nil}
					if got, err = widgets.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
					if content, _ := got.Object["spec"].(map[string]any); content[c.field] != nil {
						t.Errorf("a PUT kept %v", content)
					}
				})
			}
		}
	}
}
