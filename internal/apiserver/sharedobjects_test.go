// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// handed watches config maps, without encodings if the server supports that. plain counts the watches with encodings.
func handed(t *testing.T, config *rest.Config, o metav1.ListOptions, plain *int) watch.Interface {
	t.Helper()
	c := kubernetes.NewForConfigOrDie(config).CoreV1()
	asked := o
	asked.Watch = true
	w, err := sharedobjects.Watch(t.Context(), c.RESTClient().Get().Resource("configmaps").VersionedParams(&asked, scheme.ParameterCodec),
		func() (watch.Interface, error) {
			*plain++
			return c.ConfigMaps("").Watch(t.Context(), o)
		})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// TestHandedOver checks that a watch without encodings delivers the same events as one with encodings, and that all its
// clients share each object.
func TestHandedOver(t *testing.T) {
	f := start(t)
	yes, plain := true, 0
	all := metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	labelled := metav1.ListOptions{LabelSelector: "color=blue"}
	for _, o := range []metav1.ListOptions{all, labelled} {
		ns := "all"
		if o.LabelSelector != "" {
			ns = "labelled"
		}
		c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps(ns)
		blue := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"color": "blue"}},
			Data: map[string]string{"k": "v"}}
		if _, err := c.Create(t.Context(), blue, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		first, second := handed(t, protobuf(f.inProcess), o, &plain), handed(t, f.inProcess, o, &plain)
		bytes, err := kubernetes.NewForConfigOrDie(protobuf(f.tls)).CoreV1().ConfigMaps("").Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer bytes.Stop()
		for _, color := range []string{"red", "blue"} {
			if _, err := c.Patch(t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"color":"`+color+`"}}}`),
				metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for last := false; !last; {
			want := next(t, bytes)
			a, b := next(t, first), next(t, second)
			if !reflect.DeepEqual(a, want) {
				t.Errorf("%s: handed over is %s", ns, cmp.Diff(want, a))
			}
			if a.Type != watch.Bookmark && a.Object != b.Object {
				t.Errorf("%s: of %s there are two objects", ns, a.Type)
			}
			made, ok := a.Object.(*corev1.ConfigMap)
			last = ok && a.Type == watch.Deleted && made.Labels["color"] == "blue"
		}
	}
	if plain != 0 {
		t.Errorf("%d watches were of bytes", plain)
	}
	if handed(t, protobuf(f.tls), labelled, &plain); plain != 1 {
		t.Error("a client of another process was handed objects")
	}
}

// TestHandedOverMetadata checks that watches of metadata in this process deliver the same events without encodings as with them.
func TestHandedOverMetadata(t *testing.T) {
	f := start(t)
	requested := 0
	counted := rest.CopyConfig(f.inProcess)
	counted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			requested++
			return next.RoundTrip(r)
		})
	})
	shared, err := sharedobjects.Metadata(counted)
	if err != nil {
		t.Fatal(err)
	}
	plain := metadata.NewForConfigOrDie(f.tls)
	maps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	yes := true
	o := metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns")
	if _, err := c.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"color": "blue"}}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, resource := range map[string]func(metadata.Interface) metadata.ResourceInterface{
		"all":       func(c metadata.Interface) metadata.ResourceInterface { return c.Resource(maps) },
		"namespace": func(c metadata.Interface) metadata.ResourceInterface { return c.Resource(maps).Namespace("ns") },
	} {
		requested = 0
		a, err := resource(shared).Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Stop()
		b, err := resource(plain).Watch(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Stop()
		if requested != 1 {
			t.Errorf("%s: %d requests for one watch: the server did not hand over", name, requested)
		}
		change := []byte(`{"metadata":{"labels":{"of":"` + name + `"}}}`)
		if _, err := c.Patch(t.Context(), "a", types.MergePatchType, change, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		for changed := false; !changed; {
			got, want := next(t, a), next(t, b)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: handed over is %s", name, cmp.Diff(want, got))
			}
			if _, ok := want.Object.(*metav1.PartialObjectMetadata); !ok {
				t.Fatalf("%s: got %v", name, want)
			}
			changed = want.Object.(metav1.Object).GetLabels()["of"] == name
		}
	}
	unknown := schema.GroupVersionResource{Version: "v1", Resource: "nothing"}
	if _, err := shared.Resource(unknown).Watch(t.Context(), o); !apierrors.IsNotFound(err) {
		t.Errorf("a watch of an unknown resource: %v", err)
	}
}

// TestHandedOverEnds checks that a watch without encodings ends with its context, when it is stopped, and by an error,
// which it reports.
func TestHandedOverEnds(t *testing.T) {
	f := start(t)
	plain := 0
	drained := func(w watch.Interface) (last watch.Event) {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			select {
			case e, ok := <-w.ResultChan():
				if !ok {
					return last
				}
				last = e
			case <-late:
				t.Fatal("the watch does not end")
			}
		}
	}
	stopped := handed(t, f.inProcess, metav1.ListOptions{}, &plain)
	stopped.Stop()
	drained(stopped)
	second := int64(1)
	drained(handed(t, f.inProcess, metav1.ListOptions{TimeoutSeconds: &second}, &plain))
	ctx, cancel := context.WithCancel(t.Context())
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1()
	w, err := sharedobjects.Watch(ctx, c.RESTClient().Get().Resource("configmaps").Param("watch", "true"), func() (watch.Interface, error) {
		t.Error("the server did not hand over")
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	drained(w)
	f = start(t) // its feed begins after the compacted revisions
	c = kubernetes.NewForConfigOrDie(f.inProcess).CoreV1()
	for _, name := range []string{"a", "b"} {
		if _, err := c.ConfigMaps("ns").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.opts.Store.Compact(t.Context(), f.opts.Store.Revision()); err != nil {
		t.Fatal(err)
	}
	e := drained(handed(t, f.inProcess, metav1.ListOptions{ResourceVersion: "2"}, &plain))
	if s, ok := e.Object.(*metav1.Status); e.Type != watch.Error || !ok || s.Reason != metav1.StatusReasonExpired ||
		!strings.HasPrefix(s.Message, "too old resource version") {
		t.Errorf("a revision that is forgotten: %v", e)
	}
	if plain != 0 {
		t.Errorf("%d watches were of bytes", plain)
	}
}
