// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers_test

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/embed"
)

// TestCustomResources goes the same way with objects of a definition, and informers of both sorts.
func TestCustomResources(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{})
	ctx := t.Context()
	definition := &unstructured.Unstructured{}
	if err := definition.UnmarshalJSON([]byte(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
		"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"data":{"type":"object","additionalProperties":{"type":"string"}},"size":{"type":"integer","maximum":3}}}}},
		{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"data":{"type":"object","additionalProperties":{"type":"string"}},"size":{"type":"integer","maximum":3}}}}}]}}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "widgets"}
	const name = "widgets.example.com"
	c.configure(t, "widgets", "example.com", "widgets", v1alpha1.Initializer{Name: name})
	watch, err := c.dynamic.Resource(widgets).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	tooLarge := make(chan error, 1)
	c.initializer(t, name, widgets, func(u *unstructured.Unstructured) error {
		large := u.DeepCopy()
		if err := unstructured.SetNestedField(large.Object, int64(7), "size"); err != nil {
			return err
		}
		_, err := c.dynamic.Resource(widgets).Namespace("default").Update(ctx, large, metav1.UpdateOptions{})
		tooLarge <- err
		return appends(name)(u)
	})
	w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v2", "kind": "Widget",
		"metadata": map[string]any{"name": "w"}}}
	made, err := c.dynamic.Resource(widgets).Namespace("default").Create(ctx, w, metav1.CreateOptions{})
	if err != nil || made.GetAPIVersion() != "example.com/v2" || v1alpha1.Uninitialized(made) || made.GetAnnotations() != nil {
		t.Fatalf("created %v, %v", made, err)
	}
	if err := <-tooLarge; !apierrors.IsInvalid(err) {
		t.Errorf("an initializer may write what may not be: %v", err)
	}
	e := <-watch.ResultChan()
	if u := e.Object.(*unstructured.Unstructured); e.Type != "ADDED" || u.GetResourceVersion() != made.GetResourceVersion() {
		t.Errorf("%s %v", e.Type, u)
	}
}

// TestCleaningUp deletes the owner and the namespace of objects that wait: nothing of them remains.
func TestCleaningUp(t *testing.T) {
	t.Parallel()
	c := start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"namespace-controller", "garbage-collector-controller"}})
	ctx := t.Context()
	owner, err := c.client.CoreV1().ConfigMaps("default").Create(ctx, configMap("owner"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.configure(t, "dead", "", "configmaps", v1alpha1.Initializer{Name: "never.example.com", DeadlineSeconds: 3600})
	owned := configMap("owned")
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}}
	if owned, err = c.all.CoreV1().ConfigMaps("default").Create(ctx, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inside := configMap("inside")
	inside.Namespace = "going"
	if _, err := c.all.CoreV1().ConfigMaps("going").Create(ctx, inside, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	namespaces, err := c.client.CoreV1().Namespaces().Watch(ctx,
		metav1.ListOptions{ResourceVersion: ns.ResourceVersion, FieldSelector: "metadata.name=going"})
	if err != nil {
		t.Fatal(err)
	}
	defer namespaces.Stop()
	all := follow(t, c.all, metav1.ListOptions{ResourceVersion: owned.ResourceVersion})
	if err := c.client.CoreV1().ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.CoreV1().Namespaces().Delete(ctx, "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "DELETED owner", "DELETED owned")
	for e := range namespaces.ResultChan() {
		if e.Type == "DELETED" {
			break
		}
	}
	if l, err := c.all.CoreV1().ConfigMaps("").List(context.WithoutCancel(ctx), metav1.ListOptions{}); err != nil ||
		slices.ContainsFunc(l.Items, func(m corev1.ConfigMap) bool { return m.Name == "inside" }) {
		t.Errorf("what was in the namespace is still there: %v", err)
	}
}
