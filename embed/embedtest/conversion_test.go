// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"encoding/json"
	"net/http"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// twoVersions are widgets: v1, which is stored, has spec.size, and v2 has spec.width.
func twoVersions(t *testing.T, cluster *embed.Server) {
	t.Helper()
	open := true
	version := func(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: stored,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", XPreserveUnknownFields: &open,
			}}}
	}
	definition := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Kind: "Widget", ListKind: "WidgetList", Plural: "widgets", Singular: "widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(definition)
	if err != nil {
		t.Fatal(err)
	}
	made := &unstructured.Unstructured{Object: content}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	client := dynamic.NewForConfigOrDie(cluster.Config()).Resource(definitions)
	if _, err := client.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.WaitFor(t, made, func() bool {
		conditions, _, _ := unstructured.NestedSlice(made.Object, "status", "conditions") // none yet
		for _, c := range conditions {
			if is, ok := c.(map[string]any); ok && is["type"] == "Established" && is["status"] == "True" {
				return true
			}
		}
		return false
	})
}

// converts is the conversion webhook: it renames the field.
func converts(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if spec, ok := u.Object["spec"].(map[string]any); ok {
			from, to := "size", "width"
			if review.Request.DesiredAPIVersion == "example.com/v1" {
				from, to = to, from
			}
			spec[to] = spec[from]
			delete(spec, from)
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// TestConversionWebhook reads an object in the version in which it is not stored, from a cluster and in a bubble.
func TestConversionWebhook(t *testing.T) {
	first := bare(t)
	twoVersions(t, first)
	first.ConversionWebhook(t, "widgets.example.com", http.HandlerFunc(converts))
	check := func(t *testing.T, cluster *embed.Server) {
		t.Helper()
		widgets := func(version string) dynamic.ResourceInterface {
			gvr := schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}
			return dynamic.NewForConfigOrDie(cluster.Config()).Resource(gvr).Namespace("default")
		}
		widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v2", "kind": "Widget",
			"metadata": map[string]any{"name": "w"}, "spec": map[string]any{"width": "7"}}}
		if _, err := widgets("v2").Create(t.Context(), widget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for version, field := range map[string]string{"v1": "size", "v2": "width"} {
			got, err := widgets(version).Get(t.Context(), "w", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if value, _, _ := unstructured.NestedString(got.Object, "spec", field); value != "7" {
				t.Errorf("in %s the object is %v", version, got.Object)
			}
		}
	}
	embedtest.Bubble(t, first, check)
	check(t, first)
}
