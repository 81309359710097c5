// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// typedCodec stores objects of a Go type as JSON.
type typedCodec struct{ empty func() resource.Object }

func (c typedCodec) Encode(obj resource.Object) ([]byte, error) { return json.Marshal(obj) }

func (c typedCodec) Decode(data []byte) (resource.Object, error) {
	obj := c.empty()
	return obj, json.Unmarshal(data, obj)
}

func configMaps() *resource.Descriptor {
	empty := func() resource.Object { return &corev1.ConfigMap{} }
	return &resource.Descriptor{
		Resource: "configmaps", Singular: "configmap", Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: empty, Protobuf: true, Strategic: true}}, Storage: "v1", Prefix: "configmaps",
		Codec: typedCodec{empty},
	}
}

// pods is a simplified Pod kind, with graceful deletion and a selectable field.
func pods() *resource.Descriptor {
	empty := func() resource.Object { return &corev1.Pod{} }
	grace := int64(30)
	return &resource.Descriptor{
		Resource: "pods", Singular: "pod", Kind: "Pod", ListKind: "PodList", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: empty, Protobuf: true, Strategic: true}}, Storage: "v1", Prefix: "pods",
		Codec: typedCodec{empty},
		Strategy: resource.Strategy{ReturnDeleted: true, Graceful: func(_ context.Context, _ resource.Object, o *metav1.DeleteOptions) bool {
			if o.GracePeriodSeconds == nil {
				o.GracePeriodSeconds = &grace
			}
			return true
		}},
		Fields: func(obj resource.Object) fields.Set {
			return fields.Set{"spec.nodeName": obj.(*corev1.Pod).Spec.NodeName}
		},
		FieldNames: []string{"spec.nodeName"},
	}
}

type mapCodec struct{}

func (mapCodec) Encode(obj resource.Object) ([]byte, error) {
	return json.Marshal(obj.(*unstructured.Unstructured).Object)
}

func (mapCodec) Decode(data []byte) (resource.Object, error) {
	u := &unstructured.Unstructured{}
	return u, json.Unmarshal(data, &u.Object)
}

// widgets is a kind as a CRD would define it.
func widgets() *resource.Descriptor {
	return &resource.Descriptor{
		Group: "example.com", Resource: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &unstructured.Unstructured{Object: map[string]any{}} }}},
		Storage:  "v1", Prefix: "example.com/widgets", Codec: mapCodec{}, Strategy: resource.Strategy{Conditional: true},
	}
}

// fixture is a server with clients, in the same process and over TLS.
type fixture struct {
	*Server
	inProcess, tls *rest.Config
}

func start(t *testing.T) *fixture {
	t.Helper()
	return startWith(t, Options{})
}

// startWith is start with some options, and HTTP/2 as the program serves it.
func startWith(t *testing.T, o Options) *fixture {
	t.Helper()
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine := store.New(memory.Open(memory.Options{}))
	o.Store, o.Kinds, o.Material = engine, []*resource.Descriptor{configMaps(), pods(), widgets()}, m
	o.FlowControl.Bounds.HTTP2 = &http2server.Server{}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := engine.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	return &fixture{Server: s,
		inProcess: s.Config(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}),
		tls: &rest.Config{Host: "https://" + l.Addr().String(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{
			CAData: m.CA.CertPEM, CertData: m.Admin.CertPEM, KeyData: m.Admin.KeyPEM,
		}},
	}
}

func protobuf(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	return c
}

func clients(t *testing.T, f *fixture) map[string]*rest.Config {
	t.Helper()
	return map[string]*rest.Config{
		"in-process JSON": f.inProcess, "in-process protobuf": protobuf(f.inProcess), "TLS JSON": f.tls, "TLS protobuf": protobuf(f.tls),
	}
}

func TestTypedClient(t *testing.T) {
	f := start(t)
	for name, config := range clients(t, f) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			c := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("ns")
			made, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-", Labels: map[string]string{"l": "1"}},
				Data: map[string]string{"k": "<v>"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if made.UID == "" || made.ResourceVersion == "" || made.CreationTimestamp.IsZero() || made.Namespace != "ns" {
				t.Errorf("metadata was not filled in: %+v", made.ObjectMeta)
			}
			w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: made.ResourceVersion, FieldSelector: "metadata.name=" + made.Name})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			got, err := c.Get(ctx, made.Name, metav1.GetOptions{})
			if err != nil || got.Data["k"] != "<v>" || got.ResourceVersion != made.ResourceVersion {
				t.Fatalf("get: %v, %v", got, err)
			}
			got.Data["k"] = "w"
			changed, err := c.Update(ctx, got, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			same, err := c.Update(ctx, changed, metav1.UpdateOptions{})
			if err != nil || same.ResourceVersion != changed.ResourceVersion {
				t.Errorf("an update that changes nothing made revision %v of %v, error %v", same.ResourceVersion, changed.ResourceVersion, err)
			}
			if _, err := c.Update(ctx, got, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("stale update: %v", err)
			}
			patched, err := c.Patch(ctx, made.Name, types.StrategicMergePatchType, []byte(`{"data":{"p":"q"}}`), metav1.PatchOptions{})
			if err != nil || patched.Data["p"] != "q" || patched.Data["k"] != "w" {
				t.Errorf("patch: %v, %v", patched, err)
			}
			list, err := c.List(ctx, metav1.ListOptions{LabelSelector: "l=1", FieldSelector: "metadata.name=" + made.Name})
			if err != nil || len(list.Items) != 1 || list.Items[0].Data["p"] != "q" {
				t.Errorf("list: %v, %v", list, err)
			}
			if err := c.Delete(ctx, made.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions("other")}); !apierrors.IsConflict(
				err) {
				t.Errorf("delete of another uid: %v", err)
			}
			if err := c.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := c.Get(ctx, made.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("get of a deleted object: %v", err)
			}
			for _, want := range []watch.EventType{watch.Modified, watch.Modified, watch.Deleted} {
				e, ok := <-w.ResultChan()
				if !ok || e.Type != want {
					t.Fatalf("event %v (%v), want %v", e, ok, want)
				}
			}
		})
	}
}

func TestPagesAreOfOneRevision(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().ConfigMaps("ns")
	for _, n := range []string{"a", "b", "c", "d", "e"} {
		if _, err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := c.List(ctx, metav1.ListOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(first.Items) != 2 || first.RemainingItemCount == nil || *first.RemainingItemCount != 3 {
		t.Errorf("first page: %d items, remaining %v", len(first.Items), first.RemainingItemCount)
	}
	if err := c.Delete(ctx, "d", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	rest, err := c.List(ctx, metav1.ListOptions{Continue: first.Continue})
	if err != nil || len(rest.Items) != 3 || rest.ResourceVersion != first.ResourceVersion {
		t.Errorf("the rest: %v, %v", rest, err)
	}
	future := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().RESTClient().Get().Namespace("ns").Resource("configmaps").Param(
		"resourceVersion", "100000")
	if err := future.MaxRetries(0).Do(ctx).Error(); !apierrors.IsTimeout(err) {
		t.Errorf("list of the future: %v", err)
	}
}

func TestPodDeletion(t *testing.T) {
	f := start(t)
	ctx := t.Context()
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().Pods("ns")
	pod, err := c.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Finalizers: []string{"example.com/f"}},
		Spec: corev1.PodSpec{NodeName: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: pod.ResourceVersion, FieldSelector: "spec.nodeName=n"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := c.Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	going, err := c.Get(ctx, "p", metav1.GetOptions{})
	if err != nil || going.DeletionTimestamp == nil || *going.DeletionGracePeriodSeconds != 30 {
		t.Fatalf("pod %v, error %v", going, err)
	}
	if err := c.Delete(ctx, "p", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	held, err := c.Get(ctx, "p", metav1.GetOptions{})
	if err != nil || *held.DeletionGracePeriodSeconds != 0 {
		t.Fatalf("a finalizer must hold the pod: %v, %v", held, err)
	}
	if _, err := c.Patch(ctx, "p", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(ctx, "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the last finalizer went, the pod did not: %v", err)
	}
	for _, want := range []watch.EventType{watch.Modified, watch.Modified, watch.Deleted} {
		if e := <-w.ResultChan(); e.Type != want {
			t.Errorf("event %v, want %v", e.Type, want)
		}
	}
}

func TestDynamicAndInformers(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w := dynamic.NewForConfigOrDie(f.tls).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
		Resource: "widgets"}).Namespace("ns")
	obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "w"}, "spec": map[string]any{"n": int64(1)}}}
	if _, err := w.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := w.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetKind() != "Widget" {
		t.Fatalf("list %v, error %v", list, err)
	}
	for name, config := range clients(t, f) {
		t.Run(name, func(t *testing.T) {
			client := kubernetes.NewForConfigOrDie(config)
			factory := informers.NewSharedInformerFactory(client, 0)
			seen := make(chan string, 8)
			informer := factory.Core().V1().ConfigMaps().Informer()
			if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc:    func(o any) { seen <- "+" + o.(*corev1.ConfigMap).Name },
				DeleteFunc: func(o any) { seen <- "-" + o.(*corev1.ConfigMap).Name },
			}); err != nil {
				t.Fatal(err)
			}
			stop, done := context.WithCancel(ctx)
			factory.Start(stop.Done())
			defer factory.Shutdown()
			defer done()
			if !cache.WaitForCacheSync(stop.Done(), informer.HasSynced) {
				t.Fatal("the informer did not sync")
			}
			cms := client.CoreV1().ConfigMaps("inf")
			if _, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := cms.Delete(ctx, "x", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"+x", "-x"} {
				if got := <-seen; got != want {
					t.Errorf("informer saw %s, want %s", got, want)
				}
			}
		})
	}
}

func claims(namespace, name string) resource.TokenClaims {
	return resource.TokenClaims{Namespace: namespace, ServiceAccount: name, ServiceAccountUID: "u", Seconds: 600}
}
