// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

func gadgets(t testing.TB) []*resource.Descriptor {
	t.Helper()
	b, err := os.ReadFile("testdata/definition.json")
	if err != nil {
		t.Fatal(err)
	}
	free := `{"spec":{"group":"dlg.example.com","scope":"Namespaced","names":{"plural":"frees","singular":"free","kind":"Free","listKind":"FreeList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	var out []*resource.Descriptor
	for _, j := range []string{string(b), free} {
		def := &v1.CustomResourceDefinition{}
		if err := json.Unmarshal([]byte(j), def); err != nil {
			t.Fatal(err)
		}
		d, err := crd.Compile(def, nil)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

func builtIn(group, name string) *resource.Descriptor {
	return &resource.Descriptor{Group: group, Resource: name, Storage: "v1", Versions: []resource.Version{
		{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}}}
}

func get(t *testing.T, h http.Handler, path string, header ...string) (*http.Response, []byte) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Result(), b
}

func decode(t *testing.T, b []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestCustomGolden compares the documents with those of kube-apiserver 1.37.1 for the same two definitions.
func TestCustomGolden(t *testing.T) {
	z, err := os.ReadFile("testdata/gadget.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	want, err := inflate(z)
	if err != nil {
		t.Fatal(err)
	}
	list := gadgets(t)
	h := New(func() []*resource.Descriptor { return list }, nil)
	_, got := get(t, h, "/openapi/v3/apis/dlg.example.com/v1")
	if d := cmp.Diff(decode(t, want), decode(t, got)); d != "" {
		t.Error(d)
	}
}

func TestIndexAndHashes(t *testing.T) {
	list := append(gadgets(t), builtIn("", "pods"), builtIn("apps", "deployments"))
	h := New(func() []*resource.Descriptor { return list }, nil)
	r, b := get(t, h, "/openapi/v3")
	paths := decode(t, b)["paths"].(map[string]any)
	for _, p := range []string{"api/v1", "apis/apps/v1", "apis/apps", "apis", "version", "apis/dlg.example.com/v1",
		"apis/dlg.example.com/v1beta1"} {
		if paths[p] == nil {
			t.Errorf("%s is not in the index", p)
		}
	}
	if paths["apis/batch/v1"] != nil {
		t.Error("the index has a group that is not served")
	}
	if again, _ := get(t, h, "/openapi/v3", "If-Modified-Since", r.Header.Get("Last-Modified")); again.StatusCode != http.StatusNotModified {
		t.Errorf("index: %d", again.StatusCode)
	}
	for _, p := range []string{"apis/apps/v1", "apis/dlg.example.com/v1"} {
		url := paths[p].(map[string]any)["serverRelativeURL"].(string)
		r, b := get(t, h, url)
		if r.StatusCode != http.StatusOK || r.Header.Get("Cache-Control") != "public, immutable" || decode(t, b)["openapi"] != "3.0.0" {
			t.Errorf("%s: %d, %s", url, r.StatusCode, r.Header.Get("Cache-Control"))
		}
		if r, _ := get(t, h, url, "If-None-Match", r.Header.Get("Etag")); r.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %d", p, r.StatusCode)
		}
		if r, _ := get(t, h, "/openapi/v3/"+p+"?hash=old"); r.StatusCode != http.StatusMovedPermanently || r.Header.Get("Location") != url {
			t.Errorf("%s with an old hash: %d, %s", p, r.StatusCode, r.Header.Get("Location"))
		}
		r, b = get(t, h, url, "Accept", "application/com.github.proto-openapi.spec.v3@v1.0+protobuf")
		var doc openapi_v3.Document
		if err := proto.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Openapi != "3.0.0" || r.Header.Get("Content-Type") != "application/com.github.proto-openapi.spec.v3.v1.0+protobuf" {
			t.Errorf("%s: %q, %s", p, doc.Openapi, r.Header.Get("Content-Type"))
		}
	}
	if r, _ := get(t, h, "/openapi/v3/apis/nope/v1"); r.StatusCode != http.StatusNotFound {
		t.Errorf("unknown: %d", r.StatusCode)
	}
	if r, _ := get(t, h, "/openapi/v3/apis/apps/v1", "Accept", "text/html"); r.StatusCode != http.StatusNotAcceptable {
		t.Errorf("HTML: %d", r.StatusCode)
	}
}

// TestIndexOfTheSameSecond requests an index that has changed within the second of the previous request.
func TestIndexOfTheSameSecond(t *testing.T) {
	all := gadgets(t)
	list := all[:1]
	h := New(func() []*resource.Descriptor { return list }, nil)
	h.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC) }
	had, _ := get(t, h, "/openapi/v3")
	if again, _ := get(t, h, "/openapi/v3", "If-Modified-Since", had.Header.Get("Last-Modified")); again.StatusCode != http.StatusNotModified {
		t.Errorf("what the client has: %d", again.StatusCode)
	}
	list = all
	if again, _ := get(t, h, "/openapi/v3", "If-Modified-Since", had.Header.Get("Last-Modified")); again.StatusCode != http.StatusOK {
		t.Errorf("what has changed: %d", again.StatusCode)
	}
}

func TestGzip(t *testing.T) {
	list := gadgets(t)
	h := New(func() []*resource.Descriptor { return list }, nil)
	_, plain := get(t, h, "/openapi/v3/api/v1")
	r, z := get(t, h, "/openapi/v3/api/v1", "Accept-Encoding", "br, gzip")
	b, err := inflate(z)
	if err != nil {
		t.Fatal(err)
	}
	if r.Header.Get("Content-Encoding") != "gzip" || string(b) != string(plain) || len(z)*5 > len(plain) {
		t.Errorf("%s: %d bytes of %d", r.Header.Get("Content-Encoding"), len(z), len(plain))
	}
}

func TestV2(t *testing.T) {
	list := []*resource.Descriptor{builtIn("", "pods")}
	h := New(func() []*resource.Descriptor { return list }, nil)
	_, b := get(t, h, "/openapi/v2")
	before := decode(t, b)
	r, _ := get(t, h, "/openapi/v2")
	list = append(list, gadgets(t)...)
	after, b := get(t, h, "/openapi/v2")
	if r.Header.Get("Etag") == after.Header.Get("Etag") {
		t.Error("a new kind did not change the tag")
	}
	merged := decode(t, b)
	had, has := before["definitions"].(map[string]any), merged["definitions"].(map[string]any)
	if len(has) != len(had)+6 { // two kinds, one of them in two versions, and their lists
		t.Errorf("%d definitions, then %d", len(had), len(has))
	}
	all := merged["paths"].(map[string]any)
	for p, want := range before["paths"].(map[string]any) {
		if d := cmp.Diff(want, all[p]); d != "" {
			t.Error(p, d)
		}
	}
	checkGadgetPaths(t, all)
	gadget := has["com.example.dlg.v1.Gadget"].(map[string]any)["properties"].(map[string]any)
	want := map[string]any{"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
		"description": "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"}
	if d := cmp.Diff(want, gadget["metadata"]); d != "" {
		t.Error(d)
	}
	_, b = get(t, h, "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	var doc openapi_v2.Document
	if err := proto.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range doc.Definitions.AdditionalProperties {
		names[s.Name] = true
	}
	if len(doc.Paths.Path) != len(all) {
		t.Errorf("%d paths in protobuf, %d in JSON", len(doc.Paths.Path), len(all))
	}
	if doc.Swagger != "2.0" || len(names) != len(has) || !names["io.k8s.api.core.v1.Pod"] || !names["com.example.dlg.v1.Gadget"] {
		t.Errorf("swagger %q, %d definitions", doc.Swagger, len(names))
	}
}

// checkGadgetPaths compares the paths with those of kube-apiserver 1.37.1: shared parameters are references.
func checkGadgetPaths(t *testing.T, paths map[string]any) {
	t.Helper()
	path := "/apis/dlg.example.com/v1/namespaces/{namespace}/gadgets/{name}"
	want := decode(t, []byte(`{"delete": {
		"description": "delete a Gadget", "operationId": "deleteDlgExampleComV1NamespacedGadget", "tags": ["dlgExampleCom_v1"], "schemes": ["https"],
		"consumes": ["application/json", "application/yaml"], "produces": ["application/json", "application/yaml"],
		"x-kubernetes-action": "delete", "x-kubernetes-group-version-kind": {"group": "dlg.example.com", "kind": "Gadget", "version": "v1"},
		"parameters": [{"$ref": "#/parameters/body-2Y1dVQaQ"}, {"$ref": "#/parameters/dryRun"}, {"$ref": "#/parameters/gracePeriodSeconds--K5HaBOS"},
			{"$ref": "#/parameters/ignoreStoreReadErrorWithClusterBreakingPotential-QbNkfIqj"}, {"$ref": "#/parameters/orphanDependents-uRB25kX5"},
			{"$ref": "#/parameters/propagationPolicy-6jk3prlO"}],
		"responses": {
			"200": {"description": "OK", "schema": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status"}},
			"202": {"description": "Accepted", "schema": {"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status"}},
			"401": {"description": "Unauthorized"}}}}`))["delete"].(map[string]any)
	got := paths[path].(map[string]any)["delete"].(map[string]any)
	// the one parameter whose description differs by kind is inlined
	for i, p := range got["parameters"].([]any) {
		if p.(map[string]any)["name"] == "dryRun" {
			got["parameters"].([]any)[i] = map[string]any{"$ref": "#/parameters/dryRun"}
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(path, d)
	}
	patch := paths[path].(map[string]any)["patch"].(map[string]any)
	if d := cmp.Diff([]any{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"},
		patch["consumes"]); d != "" {
		t.Error(d)
	}
	for _, p := range []string{"/apis/dlg.example.com/v1/gadgets", "/apis/dlg.example.com/v1/namespaces/{namespace}/gadgets", path + "/status",
		path + "/scale"} {
		if paths[p] == nil {
			t.Errorf("no path %s", p)
		}
	}
}

func FuzzAccept(f *testing.F) {
	f.Add("application/json, */*;q=0.1")
	f.Add("application/com.github.proto-openapi.spec.v3.v1.0+protobuf")
	f.Fuzz(func(t *testing.T, accept string) {
		got, ok := form(accept, "v3@v1.0")
		if ok != strings.HasPrefix(got, "application/") {
			t.Errorf("%q: %q, %v", accept, got, ok)
		}
	})
}

// TestBuiltInDocuments compares the documents of built-in kinds with those of kube-apiserver 1.37.1, by their hashes.
func TestBuiltInDocuments(t *testing.T) {
	want, err := os.ReadFile("testdata/hashes.txt")
	if err != nil {
		t.Fatal(err)
	}
	s, err := readStatic()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"v2": s.V2.File}
	previews := regexp.MustCompile(`/v\d+(alpha|beta)\d+$`) // and groups without other versions
	for p, e := range s.V3 {
		if !previews.MatchString(p) && p != "apis/internal.apiserver.k8s.io" && p != "apis/lifecycle.k8s.io" && p != "apis/metrics.k8s.io" {
			files[p] = e.File
		}
	}
	seen := 0
	for line := range strings.Lines(string(want)) {
		p, hash, _ := strings.Cut(strings.TrimSpace(line), " ")
		seen++
		b, err := unzip(embedded(files[p], "").json)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if got := fmt.Sprintf("%X", sha512.Sum512(b)); !strings.HasPrefix(got, hash) {
			t.Errorf("%s: hash %.32s, want %s", p, got, hash)
		}
	}
	if seen != len(files) {
		t.Errorf("%d documents, upstream has %d", len(files), seen)
	}
}

// TestPartsAreKept checks that a new definition does not change the documents of other groups.
func TestPartsAreKept(t *testing.T) {
	list := gadgets(t)
	h := New(func() []*resource.Descriptor { return list }, nil)
	before, err := h.documents()
	if err != nil {
		t.Fatal(err)
	}
	def := &v1.CustomResourceDefinition{}
	if err := json.Unmarshal([]byte(`{"spec":{"group":"other.example.com","scope":"Cluster","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`), def); err != nil {
		t.Fatal(err)
	}
	other, err := crd.Compile(def, nil)
	if err != nil {
		t.Fatal(err)
	}
	list = append(slices.Clone(list), other)
	after, err := h.documents()
	if err != nil {
		t.Fatal(err)
	}
	const gadget, thing = "apis/dlg.example.com/v1", "apis/other.example.com/v1"
	if after.parts[gadget] != before.parts[gadget] || after.parts[thing] == nil || before.parts[thing] != nil {
		t.Error("the part of a group that did not change was made anew, or a new group has none")
	}
	_, b := get(t, h, "/openapi/v2")
	defs := decode(t, b)["definitions"].(map[string]any)
	for _, name := range []string{"com.example.dlg.v1.Gadget", "com.example.other.v1.Thing", "com.example.other.v1.ThingList",
		"io.k8s.api.core.v1.Pod"} {
		if defs[name] == nil {
			t.Errorf("no definition of %s", name)
		}
	}
}

// TestPreviews checks that versions that are not served by default have documents only where they are served.
func TestPreviews(t *testing.T) {
	preview := &resource.Descriptor{Group: "resource.k8s.io", Resource: "resourceslices", Storage: "v1", Versions: []resource.Version{
		{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }},
		{Name: "v1beta2", New: func() resource.Object { return &corev1.Pod{} }}}}
	const path, model = "/apis/resource.k8s.io/v1beta2/resourceslices", "io.k8s.api.resource.v1beta2.ResourceSlice"
	for _, c := range []struct {
		kinds []*resource.Descriptor
		want  bool
	}{
		{[]*resource.Descriptor{builtIn("resource.k8s.io", "resourceslices")}, false},
		{[]*resource.Descriptor{preview}, true},
		{append(gadgets(t), preview), true},
	} {
		h := New(func() []*resource.Descriptor { return c.kinds }, nil)
		_, b := get(t, h, "/openapi/v3")
		_, inIndex := decode(t, b)["paths"].(map[string]any)["apis/resource.k8s.io/v1beta2"]
		_, b = get(t, h, "/openapi/v2")
		doc := decode(t, b)
		_, inPaths := doc["paths"].(map[string]any)[path]
		_, inModels := doc["definitions"].(map[string]any)[model]
		if inIndex != c.want || inPaths != c.want || inModels != c.want {
			t.Errorf("%d kinds: v3 %v, v2 paths %v, definitions %v, want %v", len(c.kinds), inIndex, inPaths, inModels, c.want)
		}
		_, b = get(t, h, "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
		var message openapi_v2.Document
		if err := proto.Unmarshal(b, &message); err != nil {
			t.Fatal(err)
		}
		if len(message.Paths.Path) != len(doc["paths"].(map[string]any)) {
			t.Errorf("%d paths in protobuf, %d in JSON", len(message.Paths.Path), len(doc["paths"].(map[string]any)))
		}
	}
}

// TestEmbeddedForms reads every embedded document in both forms, as it is sent and uncompressed.
func TestEmbeddedForms(t *testing.T) {
	s, err := readStatic()
	if err != nil {
		t.Fatal(err)
	}
	files := []string{s.V2.File}
	for _, e := range s.V3 {
		files = append(files, e.File)
	}
	for _, file := range files {
		d := embedded(file, "")
		for form, get := range map[string]func() ([]byte, error){".json": d.json, ".pb": d.protobuf} {
			want, err := text(file + form)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := unzip(get); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s%s is sent otherwise than it is: %v", file, form, err)
			}
			if form == ".json" && !json.Valid(want) {
				t.Errorf("%s is no JSON", file)
			}
		}
	}
	if _, err := text("v3_none.json"); err == nil {
		t.Error("a document that is not there is read")
	}
}
