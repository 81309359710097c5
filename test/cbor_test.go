// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	clientfeatures "k8s.io/client-go/features"
	clienttesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// spoken counts the answers by their media type.
type spoken struct {
	mu sync.Mutex
	by map[string]int
}

func (s *spoken) wrap(next http.RoundTripper) http.RoundTripper { return listener{s, next} }

type listener struct {
	said *spoken
	next http.RoundTripper
}

// RoundTrip counts.
func (l listener) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.next.RoundTrip(r)
	if err == nil {
		l.said.mu.Lock()
		defer l.said.mu.Unlock()
		l.said.by[r.Method+" "+res.Header.Get("Content-Type")]++
	}
	return res, err
}

// TestCBORClients runs client-go's clients with CBOR alone, where the cluster's feature gate is on.
func TestCBORClients(t *testing.T) {
	clienttesting.SetFeatureDuringTest(t, clientfeatures.ClientsAllowCBOR, true)
	clienttesting.SetFeatureDuringTest(t, clientfeatures.ClientsPreferCBOR, true)
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}, FeatureGates: map[string]bool{"CBORServingAndStorage": true}})
	said := &spoken{by: map[string]int{}}
	config := cluster.Config()
	config.ContentType, config.AcceptContentTypes = "application/cbor", "application/cbor"
	config.Wrap(said.wrap)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := kubernetes.NewForConfigOrDie(config)

	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps := c.CoreV1().ConfigMaps("ns")
	w, err := maps.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	made, err := maps.Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"l": "v"}},
		Data:       map[string]string{"k": "v \u00e4\u4e16"}, BinaryData: map[string][]byte{"b": {0, 1, 0xff}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := maps.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.UID != made.UID || got.Data["k"] != "v \u00e4\u4e16" || string(got.BinaryData["b"]) != "\x00\x01\xff" ||
		len(got.ManagedFields) == 0 {
		t.Fatalf("got %+v, error %v", got, err)
	}
	got.Data["k"] = "w"
	if _, err := maps.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Apply(ctx, corev1apply.ConfigMap("a", "ns").WithData(map[string]string{"applied": "x"}),
		metav1.ApplyOptions{FieldManager: "m"}); err != nil {
		t.Fatal(err)
	}
	list, err := maps.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Data["applied"] != "x" || list.ResourceVersion == "" {
		t.Fatalf("list %+v, error %v", list, err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified} {
		e := <-w.ResultChan()
		if cm, ok := e.Object.(*corev1.ConfigMap); !ok || e.Type != want || cm.Name != "a" {
			t.Fatalf("event %s %v, want %s", e.Type, e.Object, want)
		}
	}
	if _, err := maps.Get(ctx, "nope", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get of what is not there: %v", err)
	}
	if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "A"}},
		metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("create with a bad name: %v", err)
	}
	background := metav1.DeletePropagationBackground
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Error(err)
	}

	factory := informers.NewSharedInformerFactory(c, 0)
	namespaces := factory.Core().V1().Namespaces().Lister()
	factory.Start(ctx.Done())
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Errorf("informer of %v does not sync", kind)
		}
	}
	if _, err := namespaces.Get("ns"); err != nil {
		t.Error(err)
	}
	cborCustom(ctx, t, cluster.Config(), config)
	cancel()
	factory.Shutdown()

	said.mu.Lock()
	defer said.mu.Unlock()
	for what, n := range said.by {
		if !strings.Contains(what, "application/cbor") {
			t.Errorf("%d answers to %q", n, what)
		}
	}
	if said.by["GET application/cbor-seq"] == 0 || said.by["PATCH application/cbor"] == 0 {
		t.Errorf("answers: %v", said.by)
	}
}

// cborCustom does the same to a custom resource, with the dynamic client and the metadata client.
func cborCustom(ctx context.Context, t *testing.T, plain, config *rest.Config) {
	t.Helper()
	free := true
	if _, err := apiextensions.NewForConfigOrDie(plain).ApiextensionsV1().CustomResourceDefinitions().Create(ctx,
		&apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets.cbor.example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "cbor.example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{
						OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &free},
					}}},
			},
		}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widgets := schema.GroupVersionResource{Group: "cbor.example.com", Version: "v1", Resource: "widgets"}
	d := dynamic.NewForConfigOrDie(config).Resource(widgets).Namespace("ns")
	w, err := d.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	spec := map[string]any{"n": int64(1) << 60, "f": 1.5, "s": "x", "list": []any{true, nil, "y"}}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cbor.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": spec,
	}}
	if _, err := d.Create(ctx, u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := d.Get(ctx, "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "n"); n != int64(1)<<60 {
		t.Errorf("n is %v", got.Object["spec"])
	}
	u.SetResourceVersion("")
	unstructured.RemoveNestedField(u.Object, "spec", "f")
	if _, err := d.Apply(ctx, "w", u, metav1.ApplyOptions{FieldManager: "m", Force: true}); err != nil {
		t.Fatal(err)
	}
	list, err := d.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "WidgetList" || list.GetResourceVersion() == "" {
		t.Fatalf("list %+v, error %v", list, err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified} {
		if e := <-w.ResultChan(); e.Type != want {
			t.Fatalf("event %s %v, want %s", e.Type, e.Object, want)
		}
	}
	if _, err := d.Patch(ctx, "w", types.MergePatchType, []byte(`{"spec":{"s":"z"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	if err := d.Delete(ctx, "w", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	partial, err := metadata.NewForConfigOrDie(plain).Resource(widgets).Namespace("ns").List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 0 {
		t.Errorf("metadata list %+v, error %v", partial, err)
	}
}

// TestCBORRefused tells that a cluster without the feature gate answers as kube-apiserver does by default.
func TestCBORRefused(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	c := cluster.Client().CoreV1().RESTClient()
	err := c.Get().AbsPath("/api/v1/namespaces").SetHeader("Accept", "application/cbor").Do(t.Context()).Error()
	if !apierrors.IsNotAcceptable(err) {
		t.Errorf("accept CBOR: %v", err)
	}
	err = c.Post().AbsPath("/api/v1/namespaces").SetHeader("Content-Type",
		"application/cbor").Body([]byte("\xd9\xd9\xf7\xa0")).Do(t.Context()).Error()
	if !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("send CBOR: %v", err)
	}
}
