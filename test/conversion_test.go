// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestConversionWebhook uses both versions of a definition in every way while its webhook works, refuses, is gone and is
// back: only what needs the webhook fails, and says whose fault it is.
func TestConversionWebhook(t *testing.T) {
	cluster := embedtest.New(t)
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	of := makeBoxes(t, cluster.Config(), boxDefinition(reach(hook.Server)))
	v1, v2 := of.v1, of.v2

	if _, err := v1.Create(ctx, namedBox("v1", "a", "size", 1), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := v2.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	b, err := v2.Create(ctx, namedBox("v2", "b", "height", 2), metav1.CreateOptions{})
	if err != nil || height(t, b, "height") != 2 {
		t.Fatal(b, err)
	}
	if got, err := v1.Get(ctx, "b", metav1.GetOptions{}); err != nil || height(t, got, "size") != 2 {
		t.Fatal(got, err)
	}
	if _, err := v2.Create(ctx, namedBox("v2", "c", "height", 11), metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), "spec.height") {
		t.Errorf("an invalid object of v2: %v", err)
	}
	got, err := v2.Patch(ctx, "a", types.MergePatchType, []byte(`{"spec":{"height":5}}`), metav1.PatchOptions{})
	if err != nil || height(t, got, "height") != 5 {
		t.Fatal(got, err)
	}
	apply := namedBox("v2", "a", "height", 6)
	if _, err := v2.Apply(ctx, "a", apply, metav1.ApplyOptions{FieldManager: "applier"}); !apierrors.IsConflict(err) {
		t.Errorf("apply of another's field: %v", err)
	}
	got, err = v2.Apply(ctx, "a", apply, metav1.ApplyOptions{FieldManager: "applier", Force: true})
	if err != nil || height(t, got, "height") != 6 {
		t.Fatal(got, err)
	}
	if again, err := v2.Apply(ctx, "a", apply, metav1.ApplyOptions{FieldManager: "applier"}); err != nil ||
		again.GetResourceVersion() != got.GetResourceVersion() {
		t.Errorf("apply again: %v, %v", again, err)
	}
	var seen []string
	for len(seen) < 4 {
		e, ok := <-w.ResultChan()
		if !ok {
			t.Fatal("the watch ended")
		}
		o := e.Object.(*unstructured.Unstructured)
		seen = append(seen, fmt.Sprintf("%s %s %d", e.Type, o.GetName(), height(t, o, "height")))
	}
	if diff := cmp.Diff([]string{"ADDED a 1", "ADDED b 2", "MODIFIED a 5", "MODIFIED a 6"}, seen); diff != "" {
		t.Error(diff)
	}
	table := func(version string) (cells []any) {
		raw, err := cluster.Client().CoreV1().RESTClient().Get().AbsPath("/apis/example.com", version, "namespaces/default/boxes").
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(ctx)
		var tab metav1.Table
		if e := json.Unmarshal(raw, &tab); err != nil || e != nil {
			t.Fatal(string(raw), err, e)
		}
		for _, r := range tab.Rows {
			cells = append(cells, r.Cells[1])
		}
		return cells
	}
	if diff := cmp.Diff(table("v1"), table("v2")); diff != "" || len(table("v2")) != 2 {
		t.Errorf("columns: %s", diff)
	}

	fails := func(when string, words ...string) {
		t.Helper()
		// a new object, so that nobody remembers how it was converted
		name := strings.ReplaceAll(when, " ", "-")
		if _, err := v1.Create(ctx, namedBox("v1", name, "size", 1), metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: the stored version does not need the webhook: %v", when, err)
		}
		for verb, do := range map[string]func() error{
			"get":  func() error { _, err := v2.Get(ctx, name, metav1.GetOptions{}); return err },
			"list": func() error { _, err := v2.List(ctx, metav1.ListOptions{}); return err },
			"create": func() error {
				_, err := v2.Create(ctx, namedBox("v2", name+"-2", "height", 1), metav1.CreateOptions{})
				return err
			},
		} {
			err := do()
			for _, word := range append(words, "conversion webhook for example.com/v", "CustomResourceDefinition boxes.example.com") {
				if err == nil || !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %s: %v, want %q in it", when, verb, err, word)
				}
			}
		}
		if l, err := v1.List(ctx, metav1.ListOptions{}); err != nil || len(l.Items) < 3 {
			t.Errorf("%s: the stored version: %v", when, err)
		}
		if got, err := v2.Get(ctx, "b", metav1.GetOptions{}); err != nil || height(t, got, "height") != 2 {
			t.Errorf("%s: an object that was converted before: %v", when, err)
		}
		if _, err := cluster.Client().CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("%s: other kinds: %v", when, err)
		}
		if err := v1.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("%s: delete: %v", when, err)
		}
	}
	hook.refuse.Store(true)
	fails("it refuses", "no tall things today")
	hook.refuse.Store(false)
	address := hook.Listener.Addr().String()
	hook.Close()
	fails("it is gone", "connection refused", address)
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	hook.start(t, l)
	list, err := v2.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("it is back: %v, %v", list, err)
	}
}

// unfollowed is a cluster in which no controller follows a kind, and so has its objects converted, at a moment of its own.
func unfollowed(t *testing.T) *embed.Server {
	return embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
}

// TestConversionWebhookIsAskedOnce lists many objects twice and watches them: one call for all of it.
func TestConversionWebhookIsAskedOnce(t *testing.T) {
	cluster := unfollowed(t)
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	of := makeBoxes(t, cluster.Config(), boxDefinition(reach(hook.Server)))
	v1, v2 := of.v1, of.v2
	for i := range 300 {
		if _, err := v1.Create(ctx, namedBox("v1", fmt.Sprint("b", i), "size", int64(i%10)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := hook.calls.Load()
	for range 2 {
		l, err := v2.List(ctx, metav1.ListOptions{})
		if err != nil || len(l.Items) != 300 {
			t.Fatal(len(l.Items), err)
		}
	}
	w, err := v2.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for range 300 {
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Fatal(e)
		}
	}
	if n := hook.calls.Load() - before; n != 1 {
		t.Errorf("%d calls for two lists and a watch of 300 objects, want 1", n)
	}
}

// TestConversionWebhookIsSentWhatNeedsIt lists objects of which some are stored in the version asked for: the others alone are sent.
func TestConversionWebhookIsSentWhatNeedsIt(t *testing.T) {
	cluster := unfollowed(t)
	ctx := t.Context()
	hook := &renamer{}
	hook.start(t, nil)
	of := makeBoxes(t, cluster.Config(), boxDefinition(reach(hook.Server)))
	v1, v2 := of.v1, of.v2
	for _, name := range []string{"a", "c"} {
		if _, err := v1.Create(ctx, namedBox("v1", name, "size", 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	swap := []byte(`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`)
	if _, err := of.crds.Patch(ctx, "boxes.example.com", types.JSONPatchType, swap, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := v2.Create(ctx, namedBox("v2", "b", "height", 2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	hook.names()
	l, err := v2.List(ctx, metav1.ListOptions{})
	if err != nil || len(l.Items) != 3 {
		t.Fatal(l, err)
	}
	for i, want := range []int64{1, 2, 1} {
		if got := height(t, &l.Items[i], "height"); got != want {
			t.Errorf("%s has height %d, want %d", l.Items[i].GetName(), got, want)
		}
	}
	if d := cmp.Diff([]string{"a", "c"}, hook.names()); d != "" {
		t.Errorf("sent for a list in the version in which b is stored (-want +got):\n%s", d)
	}
}

// TestConversionWebhookIsSlow ends a request whose client has gone, whatever the webhook does.
func TestConversionWebhookIsSlow(t *testing.T) {
	cluster := embedtest.New(t)
	hook := &renamer{held: make(chan struct{})}
	hook.start(t, nil)
	d := dynamic.NewForConfigOrDie(cluster.Config())
	if _, err := d.Resource(crdResource()).Create(t.Context(), boxDefinition(reach(hook.Server)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"}
	if _, err := d.Resource(boxes).Namespace("default").Create(t.Context(), namedBox("v1", "a", "size", 1),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxesV2 := schema.GroupVersionResource{Group: "example.com", Version: "v2", Resource: "boxes"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := d.Resource(boxesV2).Namespace("default").List(ctx, metav1.ListOptions{})
		ended <- err
	}()
	if _, err := d.Resource(boxes).Namespace("default").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the list came back without its webhook")
	}
	close(hook.held)
	if l, err := d.Resource(boxesV2).Namespace("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(l.Items) != 1 {
		t.Errorf("afterwards: %v, %v", l, err)
	}
}

// TestBrokenConversionHurtsNobodyElse deletes a namespace, and an owner, whose objects are of a definition whose webhook is
// gone and whose preferred version is not the stored one.
func TestBrokenConversionHurtsNobodyElse(t *testing.T) {
	cluster := embedtest.New(t)
	ctx := t.Context()
	c, d := cluster.Client(), dynamic.NewForConfigOrDie(cluster.Config())
	if _, err := d.Resource(crdResource()).Create(ctx, boxDefinition(map[string]any{"url": "https://127.0.0.1:1"}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	boxes := d.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boxes"})
	owner, err := c.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := namedBox("v1", "owned", "size", 1)
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}})
	if _, err := boxes.Namespace("default").Create(ctx, owned, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "going"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inside := namedBox("v1", "inside", "size", 1)
	inside.SetNamespace("going")
	if _, err := boxes.Namespace("going").Create(ctx, inside, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := boxes.Namespace("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	namespaces, err := c.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=going"})
	if err != nil {
		t.Fatal(err)
	}
	defer namespaces.Stop()
	if err := c.CoreV1().ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(ctx, "going", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	limit := time.After(30 * time.Second)
	for what, events := range map[string]<-chan watch.Event{"what the owner owned": w.ResultChan(), "the namespace": namespaces.ResultChan()} {
		for gone := false; !gone; {
			select {
			case e := <-events:
				gone = e.Type == watch.Deleted
			case <-limit:
				t.Fatalf("%s is still there", what)
			}
		}
	}
}
