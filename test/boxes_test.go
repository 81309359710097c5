// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// renamer is a conversion webhook, as its authors write them: spec.size of v1 is spec.height of v2.
type renamer struct {
	*httptest.Server
	calls  atomic.Int64
	refuse atomic.Bool
	held   chan struct{} // answers wait until it is closed; nil: they don't

	mu   sync.Mutex
	sent []string // the names of all objects that it was sent, in order
}

// names empties the list of what it was sent.
func (r *renamer) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

func (r *renamer) start(t *testing.T, l net.Listener) {
	r.Server = httptest.NewUnstartedServer(r)
	if l != nil {
		r.Listener.Close()
		r.Listener = l
	}
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	r.StartTLS()
	t.Cleanup(r.Close)
}

func (r *renamer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.calls.Add(1)
	if r.held != nil {
		select {
		case <-r.held:
		case <-q.Context().Done():
			return
		}
	}
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Request    *struct {
			UID               string           `json:"uid"`
			DesiredAPIVersion string           `json:"desiredAPIVersion"`
			Objects           []map[string]any `json:"objects"`
		} `json:"request,omitempty"`
		Response map[string]any `json:"response,omitempty"`
	}
	if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := map[string]any{"status": "Success"}
	if r.refuse.Load() {
		result = map[string]any{"status": "Failure", "message": "no tall things today"}
	}
	for _, o := range review.Request.Objects {
		r.mu.Lock()
		r.sent = append(r.sent, o["metadata"].(map[string]any)["name"].(string))
		r.mu.Unlock()
		from, to := "size", "height"
		if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v1") {
			from, to = to, from
		}
		if spec, ok := o["spec"].(map[string]any); ok && spec[from] != nil {
			spec[to] = spec[from]
			delete(spec, from)
		}
		o["apiVersion"] = review.Request.DesiredAPIVersion
	}
	review.Response = map[string]any{"uid": review.Request.UID, "result": result, "convertedObjects": review.Request.Objects}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// reach is the clientConfig of a webhook.
func reach(s *httptest.Server) map[string]any {
	return map[string]any{"url": s.URL, "caBundle": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}
}

// boxes are clients of the definition's versions in one namespace, and of all definitions.
type boxes struct{ crds, v1, v2 dynamic.ResourceInterface }

// boxesOf are the boxes of the default namespace.
func boxesOf(config *rest.Config) boxes {
	d := dynamic.NewForConfigOrDie(config)
	of := func(version string) dynamic.ResourceInterface {
		return d.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "boxes"}).Namespace("default")
	}
	return boxes{crds: d.Resource(crdResource()), v1: of("v1"), v2: of("v2")}
}

// makeBoxes makes the definition.
func makeBoxes(t *testing.T, config *rest.Config, definition *unstructured.Unstructured) boxes {
	t.Helper()
	b := boxesOf(config)
	if _, err := b.crds.Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// boxDefinition has v1 (stored) and v2, converted by client.
func boxDefinition(client map[string]any) *unstructured.Unstructured {
	version := func(name, field string, storage bool) map[string]any {
		return map[string]any{
			"name": name, "served": true, "storage": storage,
			"additionalPrinterColumns": []any{map[string]any{"name": "Tall", "type": "integer", "jsonPath": ".spec." + field}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{
					field: map[string]any{"type": "integer", "maximum": int64(10)}, "note": map[string]any{"type": "string"},
				}},
			}}},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "boxes.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced", "names": map[string]any{"plural": "boxes", "singular": "box", "kind": "Box",
				"listKind": "BoxList"},
			"versions": []any{version("v1", "size", true), version("v2", "height", false)},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"clientConfig": client, "conversionReviewVersions": []any{"v1"},
			}},
		},
	}}
}

func namedBox(version, name, field string, value int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/" + version, "kind": "Box", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{field: value},
	}}
}

func height(t *testing.T, o *unstructured.Unstructured, field string) int64 {
	t.Helper()
	n, ok, err := unstructured.NestedInt64(o.Object, "spec", field)
	if !ok || err != nil {
		t.Fatalf("spec.%s of %v: %v", field, o.Object, err)
	}
	return n
}
