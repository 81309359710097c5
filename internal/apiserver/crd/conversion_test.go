// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/resource"
)

// converter is a webhook over TLS that renames spec.size (v1) to spec.height (v2) and back. spoil changes its response.
type converter struct {
	*httptest.Server
	calls, objects atomic.Int64
	spoil          atomic.Pointer[func(review map[string]any)]
	status         atomic.Int64
	raw            atomic.Pointer[string]
}

func startConverter(t *testing.T) *converter {
	c := &converter{}
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo) // errors of clients that do not trust it
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func (c *converter) serve(w http.ResponseWriter, r *http.Request) {
	c.calls.Add(1)
	body, err := io.ReadAll(r.Body)
	var review map[string]any
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if s := c.status.Load(); s != 0 {
		http.Error(w, "not today", int(s))
		return
	}
	if raw := c.raw.Load(); raw != nil {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, *raw)
		return
	}
	request := review["request"].(map[string]any)
	var out []any
	for _, o := range request["objects"].([]any) {
		c.objects.Add(1)
		o := o.(map[string]any)
		o["apiVersion"] = request["desiredAPIVersion"]
		if spec, ok := o["spec"].(map[string]any); ok {
			from, to := "size", "height"
			if strings.HasSuffix(request["desiredAPIVersion"].(string), "/v1") {
				from, to = to, from
			}
			if v, ok := spec[from]; ok {
				delete(spec, from)
				spec[to] = v
			}
		}
		out = append(out, o)
	}
	delete(review, "request")
	review["response"] = map[string]any{"uid": request["uid"], "result": map[string]any{"status": "Success"}, "convertedObjects": out}
	if f := c.spoil.Load(); f != nil {
		(*f)(review)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func (c *converter) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
}

// boxes returns a definition with v1 (stored) and v2, converted by a webhook.
func boxes(t *testing.T, url string, authority []byte, reviews ...string) *v1.CustomResourceDefinition {
	schema := func(field string) *v1.CustomResourceValidation {
		return &v1.CustomResourceValidation{OpenAPIV3Schema: &v1.JSONSchemaProps{Type: "object", Properties: map[string]v1.JSONSchemaProps{
			"spec": {Type: "object", Properties: map[string]v1.JSONSchemaProps{field: {Type: "integer"}}},
		}}}
	}
	return &v1.CustomResourceDefinition{Spec: v1.CustomResourceDefinitionSpec{
		Group: "dlg.example.com", Scope: v1.NamespaceScoped,
		Names: v1.CustomResourceDefinitionNames{Plural: "boxes", Singular: "box", Kind: "Box", ListKind: "BoxList"},
		Versions: []v1.CustomResourceDefinitionVersion{
			{Name: "v1", Served: true, Storage: true, Schema: schema("size")},
			{Name: "v2", Served: true, Schema: schema("height")},
		},
		Conversion: &v1.CustomResourceConversion{Strategy: v1.WebhookConverter, Webhook: &v1.WebhookConversion{
			ClientConfig: &v1.WebhookClientConfig{URL: &url, CABundle: authority}, ConversionReviewVersions: reviews,
		}},
	}}
}

func compileBoxes(t *testing.T, def *v1.CustomResourceDefinition) (*resource.Descriptor, *extension.Ledger) {
	t.Helper()
	def.Name = "boxes.dlg.example.com"
	l := extension.NewLedger(clock.RealClock{})
	caller, err := webhook.New(l, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Compile(def, caller)
	if err != nil {
		t.Fatal(err)
	}
	return d, l
}

func box(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "dlg.example.com/v1", "kind": "Box", "spec": map[string]any{"size": int64(3)},
		"metadata": map[string]any{"name": name, "namespace": "ns", "uid": "u-" + name, "resourceVersion": "7",
			"labels": map[string]any{"a": "b"}},
	}}
}

func TestWebhookConvertsOnce(t *testing.T) {
	for _, review := range []string{"v1", "v1beta1"} {
		c := startConverter(t)
		d, ledger := compileBoxes(t, boxes(t, c.URL, c.authority(), "v0", review))
		v2 := d.Version("v2")
		var hubs []resource.Object
		for i := range 50 {
			hubs = append(hubs, box(fmt.Sprint("b", i)))
		}
		if err := v2.Foresee(t.Context(), hubs); err != nil {
			t.Fatal(err)
		}
		for _, h := range hubs {
			got, err := v2.FromHub(h.DeepCopyObject().(resource.Object))
			if err != nil {
				t.Fatal(err)
			}
			want := h.DeepCopyObject().(*unstructured.Unstructured)
			want.SetAPIVersion("dlg.example.com/v2")
			want.Object["spec"] = map[string]any{"height": int64(3)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
			back, err := v2.ToHub(got)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(h, back); diff != "" {
				t.Fatal(diff)
			}
		}
		if c.calls.Load() != 51 || c.objects.Load() != 100 {
			t.Errorf("%s: %d calls with %d objects, want one for the list and one for each object on its way back", review, c.calls.Load(),
				c.objects.Load())
		}
		if got, err := v2.FromHub(v2.New()); err != nil || got.GetName() != "" || c.calls.Load() != 51 {
			t.Errorf("an empty object: %v, %v, %d calls", got, err, c.calls.Load())
		}
		if s := ledger.Snapshot(); len(s) != 1 || s[0].Calls != 51 || s[0].Name != "boxes.dlg.example.com" || s[0].Failures != 0 {
			t.Errorf("ledger: %+v", s)
		}
	}
}

func TestWebhookMayChangeLabelsAndAnnotationsAlone(t *testing.T) {
	c := startConverter(t)
	d, _ := compileBoxes(t, boxes(t, c.URL, c.authority(), "v1"))
	spoil := func(r map[string]any) {
		meta := first(r)["metadata"].(map[string]any)
		meta["labels"] = map[string]any{"new": "one"}
		meta["annotations"] = map[string]any{"x": "y"}
		meta["resourceVersion"] = "99"
		meta["finalizers"] = []any{"example.com/f"}
		first(r)["unknown"] = true
	}
	c.spoil.Store(&spoil)
	got, err := d.Version("v2").FromHub(box("b"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"name": "b", "namespace": "ns", "uid": "u-b", "resourceVersion": "7", "labels": map[string]any{"new": "one"},
		"annotations": map[string]any{"x": "y"}}
	u := got.(*unstructured.Unstructured)
	if diff := cmp.Diff(want, u.Object["metadata"]); diff != "" {
		t.Error(diff)
	}
	if _, ok := u.Object["unknown"]; ok {
		t.Error("a field that the schema does not know was kept")
	}
}

func first(review map[string]any) map[string]any {
	return review["response"].(map[string]any)["convertedObjects"].([]any)[0].(map[string]any)
}

// TestWebhooksMistakes makes each possible mistake of a webhook, and checks that the error names it together with the
// webhook, the definition and the object. The next valid response is accepted.
func TestWebhooksMistakes(t *testing.T) {
	c := startConverter(t)
	about := fmt.Sprintf(" (CustomResourceDefinition boxes.dlg.example.com, webhook %s, object ns/b)", c.URL)
	prefix := "conversion webhook for dlg.example.com/v1, Kind=Box "
	response := func(r map[string]any) map[string]any { return r["response"].(map[string]any) }
	for _, m := range []struct {
		name  string
		spoil func(r map[string]any)
		want  string
	}{
		{"other kind of answer", func(r map[string]any) { r["apiVersion"] = "apiextensions.k8s.io/v1beta1" },
			"failed: converting (v1beta1.ConversionReview) to (v1.ConversionReview)"},
		{"no response", func(r map[string]any) { delete(r, "response") }, "failed: no response provided"},
		{"other uid", func(r map[string]any) { response(r)["uid"] = "x" }, `got "x"`},
		{"no success", func(r map[string]any) { response(r)["result"] = map[string]any{"status": "Failure"} },
			"failed: response.result.status was 'Failure', not 'Success'"},
		{"its own words", func(r map[string]any) {
			response(r)["result"] = map[string]any{"status": "Failure", "message": "too tall"}
		}, "failed: too tall"},
		{"no objects", func(r map[string]any) { response(r)["convertedObjects"] = []any{} }, "returned 0 objects, expected 1"},
		{"too many objects", func(r map[string]any) { response(r)["convertedObjects"] = []any{first(r), first(r)} },
			"returned 2 objects, expected 1"},
		{"wrong version", func(r map[string]any) { first(r)["apiVersion"] = "dlg.example.com/v1" },
			"returned invalid converted object in object at index 0: invalid groupVersion (expected dlg.example.com/v2, received dlg.example.com/v1)"},
		{"wrong kind", func(r map[string]any) { first(r)["kind"] = "Bag" }, "must have the same kind: Box != Bag"},
		{"wrong name", func(r map[string]any) { first(r)["metadata"].(map[string]any)["name"] = "c" }, "must have the same name: b != c"},
		{"wrong namespace", func(r map[string]any) { delete(first(r)["metadata"].(map[string]any), "namespace") },
			"must have the same namespace: ns != "},
		{"wrong uid", func(r map[string]any) { first(r)["metadata"].(map[string]any)["uid"] = "z" }, "must have the same UID: u-b != z"},
		{"no metadata", func(r map[string]any) { delete(first(r), "metadata") }, "must have the same name: b != "},
		{"metadata is a list", func(r map[string]any) { first(r)["metadata"] = []any{} }, "must have the same name: b != "},
		{"labels are a list", func(r map[string]any) { first(r)["metadata"].(map[string]any)["labels"] = []any{} },
			"returned invalid metadata in object at index 0: invalid metadata.labels of type []interface {} in converted object"},
		{"a label is a number", func(r map[string]any) {
			first(r)["metadata"].(map[string]any)["labels"] = map[string]any{"a": 1}
		}, "metadata.labels[a] must be a string, but is int64 in converted object"},
		{"a label is not valid", func(r map[string]any) {
			first(r)["metadata"].(map[string]any)["labels"] = map[string]any{"a": "-"}
		}, `metadata.labels: Invalid value: "-"`},
	} {
		d, _ := compileBoxes(t, boxes(t, c.URL, c.authority(), "v1"))
		c.spoil.Store(&m.spoil)
		_, err := d.Version("v2").FromHub(box("b"))
		if err == nil || !strings.HasPrefix(err.Error(), prefix) || !strings.Contains(err.Error(), m.want) ||
			!strings.HasSuffix(err.Error(), about) {
			t.Errorf("%s: %v", m.name, err)
		}
		c.spoil.Store(nil)
		if _, err := d.Version("v2").FromHub(box("b")); err != nil {
			t.Errorf("%s: afterwards: %v", m.name, err)
		}
	}
}

func TestWebhookThatCannotBeCalled(t *testing.T) {
	c := startConverter(t)
	fails := func(name string, def *v1.CustomResourceDefinition, want string) {
		t.Helper()
		d, _ := compileBoxes(t, def)
		if _, err := d.Version("v2").FromHub(box("b")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	fails("no authority", boxes(t, c.URL, []byte(" \n"), "v1"), "certificate")
	fails("authority is none", boxes(t, c.URL, []byte("no PEM"), "v1"), "unable to load root certificates")
	fails("no version in common", boxes(t, c.URL, c.authority(), "v9"), "no supported conversion review versions")
	fails("nobody there", boxes(t, "https://127.0.0.1:1/convert", c.authority(), "v1"), "connection refused")
	c.status.Store(http.StatusInternalServerError)
	fails("internal error", boxes(t, c.URL, c.authority(), "v1"), "an error on the server")
	c.status.Store(0)
	for name, raw := range map[string]string{"no JSON": "hello", "cut off": `{"kind":"Conv`, "nothing": "", "null": "null", "a list": "[]"} {
		c.raw.Store(&raw)
		fails(name, boxes(t, c.URL, c.authority(), "v1"), "conversion webhook for dlg.example.com/v1, Kind=Box failed: ")
	}
	d, err := Compile(boxes(t, c.URL, nil, "v1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Version("v2").FromHub(box("b")); err == nil || !strings.Contains(err.Error(), "calls no webhooks") {
		t.Errorf("without a caller: %v", err)
	}
}

func TestConvertedObjectsAreBounded(t *testing.T) {
	c := newConverted()
	for i := range 100 {
		k, _, err := key(box(fmt.Sprint(i)), "x/v1")
		if err != nil {
			t.Fatal(err)
		}
		c.put(&conversionResult{key: k, content: map[string]any{}, size: 1 << 20})
	}
	if c.size > convertedBytes || len(c.by) != c.order.Len() || len(c.by) != convertedBytes>>20 {
		t.Errorf("%d bytes in %d results, %d in order", c.size, len(c.by), c.order.Len())
	}
}
