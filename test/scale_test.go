// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestScaleThatIsPruned scales an object whose schema has no place for it: as with kube-apiserver the write is answered, keeps
// nothing, and what is read then is an error that names the place.
func TestScaleThatIsPruned(t *testing.T) {
	ctx := t.Context()
	d := dynamic.NewForConfigOrDie(embedtest.New(t).Config())
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "boxes.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "boxes", "kind": "Box"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
				"subresources": map[string]any{"scale": map[string]any{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
			}},
		},
	}}
	if _, err := d.Resource(crdResource()).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := d.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"}).Namespace("default")
	box := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Box",
		"metadata": map[string]any{"name": "a"}}}
	if _, err := boxes.Create(ctx, box, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scale := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": map[string]any{"name": "a"}, "spec": map[string]any{"replicas": int64(3)},
	}}
	answers := map[string]func() (*unstructured.Unstructured, error){
		"PUT": func() (*unstructured.Unstructured, error) {
			return boxes.Update(ctx, scale, metav1.UpdateOptions{}, "scale")
		},
		"PATCH": func() (*unstructured.Unstructured, error) {
			return boxes.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":2}}`), metav1.PatchOptions{}, "scale")
		},
	}
	for method, ask := range answers {
		got, err := ask()
		if err != nil {
			t.Errorf("%s: %v", method, err)
			continue
		}
		if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "replicas"); got.GetKind() != "Scale" || n != 0 {
			t.Errorf("%s answers a %s of %d replicas", method, got.GetKind(), n)
		}
	}
	_, err := boxes.Get(ctx, "a", metav1.GetOptions{}, "scale")
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), `the spec replicas field ".spec.replicas" does not exist`) {
		t.Errorf("GET: %v", err)
	}
}
