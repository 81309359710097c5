// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// migration asks for a migration and returns it as it is when done says so.
func migration(t *testing.T, c kubernetes.Interface, name, group, resource string,
	done func(*storagemigrationv1.StorageVersionMigration) bool) *storagemigrationv1.StorageVersionMigration {
	t.Helper()
	api := c.StoragemigrationV1().StorageVersionMigrations()
	m, err := api.Create(t.Context(), &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: group, Resource: resource}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return migrated(t, c, m, done)
}

func migrated(t *testing.T, c kubernetes.Interface, m *storagemigrationv1.StorageVersionMigration,
	done func(*storagemigrationv1.StorageVersionMigration) bool) *storagemigrationv1.StorageVersionMigration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := c.StoragemigrationV1().StorageVersionMigrations().Watch(ctx, metav1.ListOptions{
		ResourceVersion: m.ResourceVersion, FieldSelector: fields.OneTermEqualSelector("metadata.name", m.Name).String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if now, ok := e.Object.(*storagemigrationv1.StorageVersionMigration); ok {
			if m = now; done(m) {
				return m
			}
		}
	}
	t.Fatalf("migration %s: %v", m.Name, m.Status.Conditions)
	return nil
}

// over reports whether a migration has come to its end, and nothing more will be written.
func over(m *storagemigrationv1.StorageVersionMigration) bool {
	return meta.IsStatusConditionFalse(m.Status.Conditions, "Running")
}

// TestStorageVersionMigration stores objects in one version of a definition with a webhook, makes the other one the storage
// version, and has all migrated, so that the first can go.
func TestStorageVersionMigration(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"storage-version-migrator-controller"}})
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	of := makeBoxes(t, cluster.Config(), boxDefinition(reach(hook.Server)))
	v1, v2 := of.v1, of.v2
	old := map[string]string{}
	for i := range 20 {
		o, err := v1.Create(ctx, namedBox("v1", fmt.Sprint("b", i), "size", int64(i%10)), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		old[o.GetName()] = o.GetResourceVersion()
	}
	if _, err := of.crds.Patch(ctx, "boxes.example.com", types.JSONPatchType, []byte(`[
		{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}
	]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	drop := []byte(`[{"op":"remove","path":"/spec/versions/0"}]`)
	if _, err := of.crds.Patch(ctx, "boxes.example.com", types.JSONPatchType, drop, metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a version in which objects are stored goes: %v", err)
	}

	c := cluster.Client()
	m := migration(t, c, "boxes", "example.com", "boxes", over)
	if !meta.IsStatusConditionTrue(m.Status.Conditions, "Succeeded") || m.Status.ResourceVersion == "" {
		t.Errorf("conditions %v", m.Status.Conditions)
	}
	list, err := v2.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 20 {
		t.Fatal(err)
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.GetResourceVersion() == old[o.GetName()] || o.GetGeneration() != 1 || len(o.GetManagedFields()) != 1 {
			t.Errorf("%s: revision %s, before %s; generation %d, %d managers", o.GetName(), o.GetResourceVersion(), old[o.GetName()],
				o.GetGeneration(), len(o.GetManagedFields()))
		}
	}
	def, err := of.crds.Get(ctx, "boxes.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if stored, _, _ := unstructured.NestedStringSlice(def.Object, "status", "storedVersions"); !slices.Equal(stored, []string{"v2"}) {
		t.Errorf("stored versions %v", stored)
	}
	conditions, _, _ := unstructured.NestedSlice(def.Object, "status", "conditions")
	if last, ok := conditions[len(conditions)-1].(map[string]any); !ok || last["type"] != "StorageMigrating" || last["status"] != "False" ||
		last["reason"] != "MigrationSucceeded" {
		t.Errorf("conditions %v", conditions)
	}
	// What is in v2 by now needs neither the webhook nor v1.
	hook.Close()
	if _, err := of.crds.Patch(ctx, "boxes.example.com", types.JSONPatchType, drop, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := v2.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 20 {
		t.Error(err)
	}
}

// TestStorageVersionMigrationOfOthers migrates a built-in kind, one that cannot be, one that is not there, and one that comes
// after its migration.
func TestStorageVersionMigrationOfOthers(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"storage-version-migrator-controller"}})
	ctx, c := t.Context(), cluster.Client()
	made, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m := migration(t, c, "configmaps", "", "configmaps", over)
	if !meta.IsStatusConditionTrue(m.Status.Conditions, "Succeeded") {
		t.Errorf("conditions %v", m.Status.Conditions)
	}
	if now, err := c.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{}); err != nil ||
		now.ResourceVersion != made.ResourceVersion {
		t.Errorf("what is stored as it would be stored now is left alone: %v, %v", now, err)
	}
	m = migration(t, c, "reviews", "authorization.k8s.io", "subjectaccessreviews", over)
	failed := meta.FindStatusCondition(m.Status.Conditions, "Failed")
	if failed == nil || failed.Reason != "StorageVersionMigrationFailed" ||
		failed.Message != `resource "authorization.k8s.io/v1, Resource=subjectaccessreviews" does not support discovery operations: [update patch list]` {
		t.Errorf("condition %v", failed)
	}
	running := func(m *storagemigrationv1.StorageVersionMigration) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, "Running")
	}
	m = migration(t, c, "early", "example.com", "boxes", running)
	later, err := c.StoragemigrationV1().StorageVersionMigrations().Create(ctx, &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: m.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d := dynamic.NewForConfigOrDie(cluster.Config())
	def := boxDefinition(map[string]any{"url": "https://127.0.0.1:1"})
	unstructured.RemoveNestedField(def.Object, "spec", "conversion")
	crds := d.Resource(crdResource())
	if _, err := crds.Create(ctx, def, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if m = migrated(t, c, m, over); !meta.IsStatusConditionTrue(m.Status.Conditions, "Succeeded") {
		t.Errorf("conditions %v", m.Status.Conditions)
	}
	if later = migrated(t, c, later, over); !meta.IsStatusConditionTrue(later.Status.Conditions, "Succeeded") {
		t.Errorf("conditions %v", later.Status.Conditions)
	}
}

// TestStorageVersionMigrationGoesOn stops the server while a migration cannot go on, and starts it again on the same data: the
// migration ends.
func TestStorageVersionMigrationGoesOn(t *testing.T) {
	hook := &renamer{}
	hook.start(t, nil)
	dir := t.TempDir()
	start := func() *embed.Server {
		t.Helper()
		s := &embed.Server{DataDir: dir, Controllers: []string{"storage-version-migrator-controller"}}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := start()
	of := makeBoxes(t, first.Config(), boxDefinition(reach(hook.Server)))
	v1 := of.v1
	if _, err := v1.Create(t.Context(), namedBox("v1", "a", "size", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	hook.refuse.Store(true)
	if _, err := of.crds.Patch(t.Context(), "boxes.example.com", types.JSONPatchType, []byte(`[
		{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}
	]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	m := migration(t, first.Client(), "boxes", "example.com", "boxes", func(m *storagemigrationv1.StorageVersionMigration) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, "Running")
	})
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	hook.refuse.Store(false)
	second := start()
	defer func() {
		if err := second.Stop(); err != nil {
			t.Error(err)
		}
	}()
	m, err := second.Client().StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), m.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !over(m) {
		m = migrated(t, second.Client(), m, over)
	}
	if !meta.IsStatusConditionTrue(m.Status.Conditions, "Succeeded") {
		t.Errorf("conditions %v", m.Status.Conditions)
	}
	def, err := dynamic.NewForConfigOrDie(second.Config()).Resource(crdResource()).Get(t.Context(), "boxes.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if stored, _, _ := unstructured.NestedStringSlice(def.Object, "status", "storedVersions"); !slices.Equal(stored, []string{"v2"}) {
		t.Errorf("stored versions %v", stored)
	}
}

func crdResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}
