// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestReplacedByAnotherKind puts custom resources that call themselves something else: their revision is looked at before that, and of
// what is put to the status only the status counts.
func TestReplacedByAnotherKind(t *testing.T) {
	ctx := t.Context()
	config := embedtest.New(t).Config()
	d := dynamic.NewForConfigOrDie(config)
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "boxes.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "boxes", "kind": "Box"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}
	if _, err := d.Resource(crdResource()).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := d.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"}).Namespace("default")
	box := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Box",
		"metadata": map[string]any{"name": "a"}}}
	made, err := boxes.Create(ctx, box, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config).RESTClient()
	const path = "/apis/example.com/v1/namespaces/default/boxes/a"
	for _, c := range []struct {
		path, revision, name string
		code                 int
		message              string
	}{
		{path, "", "a", http.StatusUnprocessableEntity,
			`boxes.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`},
		{path, "1", "a", http.StatusConflict,
			`Operation cannot be fulfilled on boxes.example.com "a": the object has been modified; please apply your changes to the latest version and try again`},
		{path, made.GetResourceVersion(), "b", http.StatusBadRequest, "the name of the object (b) does not match the name on the URL (a)"},
		{path, made.GetResourceVersion(), "a", http.StatusUnprocessableEntity,
			`Lid.example.com "a" is invalid: kind: Invalid value: "Lid": must be Box`},
		{path + "/status", "", "a", http.StatusUnprocessableEntity,
			`boxes.example.com "a" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`},
		{path + "/status", made.GetResourceVersion(), "a", http.StatusOK, ""},
	} {
		body := fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Lid","metadata":{"name":%q,"resourceVersion":%q},"status":{"ok":true}}`,
			c.name, c.revision)
		code, message := 0, ""
		got := client.Put().AbsPath(c.path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).StatusCode(&code)
		if err := got.Error(); err != nil {
			message = err.Error()
		}
		if code != c.code || message != c.message {
			t.Errorf("%s of %s at %q: %d %s\nwant %d %s", c.path, c.name, c.revision, code, message, c.code, c.message)
		}
	}
}
