// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// liar is a renamer whose answers are spoiled on their way.
type liar struct {
	renamer
	spoil atomic.Pointer[func(w http.ResponseWriter, review map[string]any) bool]
}

func (l *liar) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	spoil := l.spoil.Load()
	if spoil == nil {
		l.renamer.ServeHTTP(w, q)
		return
	}
	honest := httptest.NewRecorder()
	l.renamer.ServeHTTP(honest, q)
	var review map[string]any
	if err := json.NewDecoder(honest.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if (*spoil)(w, review) {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func (l *liar) lie(how func(w http.ResponseWriter, review map[string]any) bool) { l.spoil.Store(&how) }

func response(review map[string]any) map[string]any { return review["response"].(map[string]any) }

func firstObject(review map[string]any) map[string]any {
	return response(review)["convertedObjects"].([]any)[0].(map[string]any)
}

func metadataOf(review map[string]any) map[string]any {
	return firstObject(review)["metadata"].(map[string]any)
}

// TestConversionWebhookIsWrong has the webhook break each rule of its contract: the request fails, the error names the webhook, the
// definition, the object and the mistake, and everything else goes on.
func TestConversionWebhookIsWrong(t *testing.T) {
	cluster := embedtest.New(t)
	ctx := t.Context()
	hook := &liar{}
	hook.Server = httptest.NewTLSServer(hook)
	t.Cleanup(hook.Close)
	d := dynamic.NewForConfigOrDie(cluster.Config())
	crds := d.Resource(crdResource())
	definition := boxDefinition(reach(hook.Server))
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for i, path := range []string{".spec.size", ".spec.height"} {
		versions[i].(map[string]any)["selectableFields"] = []any{map[string]any{"jsonPath": path}}
	}
	if err := unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	if _, err := crds.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := func(version, namespace string) dynamic.ResourceInterface {
		return d.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "boxes"}).Namespace(namespace)
	}
	v1, v2 := boxes("v1", "default"), boxes("v2", "default")

	// Selectors are of the version that they are asked in.
	for name, size := range map[string]int64{"small": 1, "tall": 9} {
		if _, err := v1.Create(ctx, namedBox("v1", name, "size", size), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for version, field := range map[string]string{"v1": "spec.size", "v2": "spec.height"} {
		l, err := boxes(version, "default").List(ctx, metav1.ListOptions{FieldSelector: field + "=9"})
		if err != nil || len(l.Items) != 1 || l.Items[0].GetName() != "tall" {
			t.Errorf("%s: %v, %v", field, l, err)
		}
	}
	if _, err := v2.List(ctx, metav1.ListOptions{FieldSelector: "spec.size=9"}); !apierrors.IsBadRequest(err) {
		t.Errorf("a field of the other version: %v", err)
	}

	metadata := func(key string, value any) func(http.ResponseWriter, map[string]any) bool {
		return func(_ http.ResponseWriter, r map[string]any) bool { metadataOf(r)[key] = value; return false }
	}
	part := func(of func(map[string]any) map[string]any, key string, value any) func(http.ResponseWriter, map[string]any) bool {
		return func(_ http.ResponseWriter, r map[string]any) bool { of(r)[key] = value; return false }
	}
	whole := func(r map[string]any) map[string]any { return r }
	body := func(code int, text string) func(http.ResponseWriter, map[string]any) bool {
		return func(w http.ResponseWriter, _ map[string]any) bool {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, text)
			return true
		}
	}
	for i, c := range []struct {
		name, says string
		how        func(http.ResponseWriter, map[string]any) bool
	}{
		{"another uid", "expected response.uid=", part(response, "uid", "x")},
		{"another kind of review", "v1beta1.ConversionReview", part(whole, "apiVersion", "apiextensions.k8s.io/v1beta1")},
		{"no response", "no response provided", part(whole, "response", nil)},
		{"too few", "returned 0 objects, expected 1", part(response, "convertedObjects", []any{})},
		{"another name", "must have the same name", metadata("name", "x")},
		{"another namespace", "must have the same namespace", metadata("namespace", "x")},
		{"another object's uid", "must have the same UID", metadata("uid", "x")},
		{"another kind", "must have the same kind", part(firstObject, "kind", "Crate")},
		{"another version", "invalid groupVersion (expected example.com/v2, received example.com/v3)",
			part(firstObject, "apiVersion", "example.com/v3")},
		{"no metadata", "", func(_ http.ResponseWriter, r map[string]any) bool { delete(firstObject(r), "metadata"); return false }},
		{"a bad label", "metadata.labels", metadata("labels", map[string]any{"a b": "c"})},
		{"a label that is no text", "must be a string", metadata("labels", map[string]any{"a": 1})},
		{"failure", "out of order", part(response, "result", map[string]any{"status": "Failure", "message": "out of order"})},
		{"failure without words", "response.result.status was '', not 'Success'", part(response, "result", map[string]any{})},
		{"an error of HTTP", "", body(http.StatusInternalServerError, "boom")},
		{"no JSON", "", body(http.StatusOK, "boom")},
		{"nothing", "", body(http.StatusOK, "")},
	} {
		name := fmt.Sprint("wrong-", i)
		if _, err := v1.Create(ctx, namedBox("v1", name, "size", 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		hook.lie(c.how)
		_, err := v2.Get(ctx, name, metav1.GetOptions{})
		for _, word := range []string{c.says, "conversion webhook for example.com/v1, Kind=Box", "CustomResourceDefinition boxes.example.com",
			hook.URL, "object default/" + name} {
			if err == nil || !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %q in it", c.name, err, word)
			}
		}
		if _, err := v2.List(ctx, metav1.ListOptions{}); !apierrors.IsInternalError(err) {
			t.Errorf("%s: list: %v", c.name, err)
		}
		if _, err := v1.List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s: list of the stored version: %v", c.name, err)
		}
		if _, err := cluster.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s: other kinds: %v", c.name, err)
		}
		hook.spoil.Store(nil)
		if o, err := v2.Get(ctx, name, metav1.GetOptions{}); err != nil || height(t, o, "height") != 1 {
			t.Errorf("after %s: %v", c.name, err)
		}
	}

	// Of the metadata only labels and annotations are the webhook's; what the schema does not know is dropped.
	hook.lie(func(_ http.ResponseWriter, r map[string]any) bool {
		m := metadataOf(r)
		m["labels"], m["finalizers"], m["generation"] = map[string]any{"by": "webhook"}, []any{"x/y"}, 99
		firstObject(r)["spec"].(map[string]any)["unknown"] = true
		return false
	})
	if _, err := v1.Create(ctx, namedBox("v1", "labelled", "size", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o, err := v2.Get(ctx, "labelled", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, unknown, _ := unstructured.NestedBool(o.Object, "spec", "unknown")
	if o.GetLabels()["by"] != "webhook" || o.GetFinalizers() != nil || o.GetGeneration() != 1 || unknown {
		t.Errorf("metadata: %v", o.Object)
	}

	// Another address is asked as soon as the definition names it.
	other := &renamer{}
	other.start(t, nil)
	patch, err := json.Marshal(map[string]any{
		"spec": map[string]any{"conversion": map[string]any{"webhook": map[string]any{"clientConfig": map[string]any{
			"url": other.URL, "caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}),
		}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := crds.Patch(ctx, "boxes.example.com", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if o, err := v2.Get(ctx, "labelled", metav1.GetOptions{}); err != nil || o.GetLabels() != nil || other.calls.Load() == 0 {
		t.Errorf("after a change of the address: %v, %v", o, err)
	}
}

// TestConversionWebhookComesBack watches while the webhook refuses and works again: changes come late, in their order, and none is
// lost. Meanwhile objects are collected, and a namespace goes.
func TestConversionWebhookComesBack(t *testing.T) {
	cluster := embedtest.New(t)
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	d := dynamic.NewForConfigOrDie(cluster.Config())
	v2 := makeBoxes(t, cluster.Config(), boxDefinition(reach(hook.Server))).v2
	all := d.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"})
	v1 := all.Namespace("default")
	w, err := v2.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	c := cluster.Client()
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	hook.refuse.Store(true)
	held := namedBox("v1", "held", "size", 1)
	held.SetNamespace("doomed")
	if _, err := all.Namespace("doomed").Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := v1.Create(ctx, namedBox("v1", fmt.Sprint("b", i), "size", int64(i)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	owner, err := v1.Get(ctx, "b0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v2", Kind: "Box", Name: "b0", UID: owner.GetUID()},
		}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps, err := c.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=owned"})
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Stop()
	namespaces, err := c.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=doomed"})
	if err != nil {
		t.Fatal(err)
	}
	defer namespaces.Stop()
	if err := v1.Delete(ctx, "b0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, "doomed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(what string, w watch.Interface) {
		t.Helper()
		limit := time.NewTimer(30 * time.Second)
		defer limit.Stop()
		for {
			select {
			case e := <-w.ResultChan():
				if e.Type == watch.Deleted {
					return
				}
			case <-limit.C:
				t.Fatalf("%s is still there", what)
			}
		}
	}
	gone("what was owned", maps)
	gone("the namespace", namespaces)
	select {
	case e := <-w.ResultChan():
		t.Fatalf("an event that cannot be: %v", e)
	default:
	}
	hook.refuse.Store(false)
	var seen []string
	for len(seen) < 4 {
		e, ok := <-w.ResultChan()
		if !ok || e.Type == watch.Error {
			t.Fatalf("the watch ended: %v", e)
		}
		o := e.Object.(*unstructured.Unstructured)
		seen = append(seen, fmt.Sprintf("%s %s %d", e.Type, o.GetName(), height(t, o, "height")))
	}
	if got := strings.Join(seen, ", "); got != "ADDED b0 0, ADDED b1 1, ADDED b2 2, DELETED b0 0" {
		t.Error(got)
	}
}

// TestScaleOfAVersion gets and sets replicas in two versions that keep them in different places, and asks one that has no
// scale and no status.
func TestScaleOfAVersion(t *testing.T) {
	cluster := embedtest.New(t)
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	definition := boxDefinition(reach(hook.Server))
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for i, field := range []string{"size", "height"} {
		versions[i].(map[string]any)["subresources"] = map[string]any{"status": map[string]any{}, "scale": map[string]any{
			"specReplicasPath": ".spec." + field, "statusReplicasPath": ".status.replicas",
		}}
	}
	plain, ok := runtime.DeepCopyJSONValue(versions[0]).(map[string]any)
	if !ok {
		t.Fatal("no version")
	}
	plain["name"], plain["storage"], plain["deprecated"], plain["deprecationWarning"] = "v1beta1", false, true, "v1beta1 is old"
	delete(plain, "subresources")
	if err := unstructured.SetNestedSlice(definition.Object, append(versions, plain), "spec", "versions"); err != nil {
		t.Fatal(err)
	}
	warned := &heard{}
	own := rest.CopyConfig(cluster.Config())
	own.WarningHandler = warned
	d := dynamic.NewForConfigOrDie(own)
	crds := d.Resource(crdResource())
	if _, err := crds.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := func(version string) dynamic.ResourceInterface {
		return d.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "boxes"}).Namespace("default")
	}
	if _, err := boxes("v1").Create(ctx, namedBox("v1", "a", "size", 3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, version := range []string{"v1", "v2"} {
		o, err := boxes(version).Get(ctx, "a", metav1.GetOptions{}, "scale")
		if err != nil {
			t.Fatal(err)
		}
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != int64(3+i) {
			t.Errorf("%s: %d replicas", version, n)
		}
		patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, 4+i)
		if o, err = boxes(version).Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		if n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas"); n != int64(4+i) {
			t.Errorf("%s: %d replicas after the patch", version, n)
		}
	}
	if o, err := boxes("v1").Get(ctx, "a", metav1.GetOptions{}); err != nil || height(t, o, "size") != 5 {
		t.Errorf("stored: %v, %v", o, err)
	}
	for _, sub := range []string{"scale", "status"} {
		if _, err := boxes("v1beta1").Get(ctx, "a", metav1.GetOptions{}, sub); !apierrors.IsNotFound(err) {
			t.Errorf("%s of a version without it: %v", sub, err)
		}
	}
	if len(warned.texts) != 2 || warned.texts[0] != "v1beta1 is old" {
		t.Errorf("warnings %q", warned.texts)
	}
}
