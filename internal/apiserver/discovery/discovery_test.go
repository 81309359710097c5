// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	types "github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/resource"
)

const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"

// golden returns a response of kube-apiserver 1.37.
func golden(t *testing.T, name string) map[string]any {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// descriptors returns descriptors made from the golden resource lists, in another order than the responses.
func descriptors(t *testing.T) []*resource.Descriptor {
	t.Helper()
	var list []*resource.Descriptor
	for _, name := range []string{"apis__autoscaling__v1", "apis__autoscaling__v2", "apis__apiextensions.k8s.io__v1",
		"apis__admissionregistration.k8s.io__v1", "apis__events.k8s.io__v1", "apis__apps__v1", "api__v1"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		var l metav1.APIResourceList
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for i := len(l.APIResources) - 1; i >= 0; i-- {
			r := l.APIResources[i]
			if strings.Contains(r.Name, "/") {
				continue
			}
			d := &resource.Descriptor{
				Group: gv.Group, Resource: r.Name, Singular: r.SingularName, Kind: r.Kind, ShortNames: r.ShortNames,
				Categories: r.Categories, Namespaced: r.Namespaced, Verbs: r.Verbs, Storage: gv.Version,
				Versions: []resource.Version{{Name: gv.Version}},
			}
			if gv.Group == "events.k8s.io" { // the events of the core group
				d.Codec = resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Event"), func() resource.Object { return &corev1.Event{} })
			}
			if gv.Group == "autoscaling" {
				if gv.Version == "v1" {
					continue
				}
				d.Versions = append(d.Versions, resource.Version{Name: "v1"})
			}
			for j := len(l.APIResources) - 1; j >= 0; j-- {
				if sub, ok := strings.CutPrefix(l.APIResources[j].Name, r.Name+"/"); ok {
					s := l.APIResources[j]
					d.Subresources = append(d.Subresources, resource.Subresource{
						Name: sub, Verbs: s.Verbs, GroupVersionKind: schema.GroupVersionKind{Group: s.Group, Version: s.Version, Kind: s.Kind},
					})
				}
			}
			list = append(list, d)
		}
	}
	return list
}

func cronTab() *resource.Descriptor {
	v := func(name string) resource.Version {
		return resource.Version{Name: name, New: func() resource.Object { return &unstructured.Unstructured{} }}
	}
	return &resource.Descriptor{
		Group: "stable.example.com", Resource: "crontabs", Singular: "crontab", Kind: "CronTab", ShortNames: []string{"ct"}, Namespaced: true,
		Storage: "v1", Versions: []resource.Version{v("v1beta1"), v("v1"), v("v2")},
		Verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
		Subresources: []resource.Subresource{
			{Name: "status", Verbs: []string{"get", "patch", "update"}},
			{Name: "scale", Verbs: []string{"get", "patch", "update"}, Versions: []string{"v1"},
				GroupVersionKind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}},
		},
	}
}

func get(t *testing.T, h http.Handler, path string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func decode(t *testing.T, r *http.Response) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGolden(t *testing.T) {
	list := descriptors(t)
	h := New(func() []*resource.Descriptor { return list })
	for _, name := range []string{"api__v1", "apis__apps", "apis__apps__v1", "apis__autoscaling", "apis__autoscaling__v1",
		"apis__autoscaling__v2", "apis__events.k8s.io__v1", "apis__apiextensions.k8s.io__v1", "apis__admissionregistration.k8s.io__v1"} {
		got := decode(t, get(t, h, "/"+strings.ReplaceAll(name, "__", "/")))
		if d := cmp.Diff(golden(t, name), got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	got := decode(t, get(t, h, "/apis", "Accept", acceptAggregated))
	if d := cmp.Diff(golden(t, "aggregated"), got); d != "" {
		t.Errorf("aggregated: %s", d)
	}
	groups := decode(t, get(t, h, "/apis"))
	if groups["kind"] != "APIGroupList" || len(groups["groups"].([]any)) != 5 {
		t.Errorf("groups: %v", groups)
	}
}

func TestCustomKinds(t *testing.T) {
	list := append(descriptors(t), cronTab())
	h := New(func() []*resource.Descriptor { return list })
	g := decode(t, get(t, h, "/apis/stable.example.com"))
	if d := cmp.Diff(map[string]any{"groupVersion": "stable.example.com/v2", "version": "v2"}, g["preferredVersion"]); d != "" {
		t.Error(d)
	}
	r := decode(t, get(t, h, "/apis/stable.example.com/v1beta1"))
	if n := len(r["resources"].([]any)); n != 2 {
		t.Errorf("%d resources in v1beta1, want 2: scale is v1's only", n)
	}
	want := map[string]any{"metadata": map[string]any{"name": "stable.example.com"}, "versions": []any{}}
	for _, v := range []string{"v2", "v1", "v1beta1"} {
		sub := []any{map[string]any{"subresource": "status", "verbs": []any{"get", "patch", "update"},
			"responseKind": map[string]any{"group": "stable.example.com", "version": v, "kind": "CronTab"}}}
		if v == "v1" {
			sub = append(sub, map[string]any{"subresource": "scale", "verbs": []any{"get", "patch", "update"},
				"responseKind": map[string]any{"group": "autoscaling", "version": "v1", "kind": "Scale"}})
		}
		want["versions"] = append(want["versions"].([]any),
			map[string]any{"version": v, "freshness": "Current", "resources": []any{map[string]any{
				"resource": "crontabs", "singularResource": "crontab", "scope": "Namespaced", "shortNames": []any{"ct"},
				"responseKind": map[string]any{"group": "stable.example.com", "version": v, "kind": "CronTab"},
				"verbs":        []any{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
				"subresources": sub,
			}}})
	}
	items := decode(t, get(t, h, "/apis", "Accept", acceptAggregated))["items"].([]any)
	if d := cmp.Diff(want, items[len(items)-1]); d != "" {
		t.Error(d)
	}
}

func TestETagFollowsTheList(t *testing.T) {
	list := descriptors(t)
	h := New(func() []*resource.Descriptor { return list })
	first := get(t, h, "/apis", "Accept", acceptAggregated)
	etag := first.Header.Get("ETag")
	if again := get(t, h, "/apis", "Accept", acceptAggregated, "If-None-Match", etag); again.StatusCode != http.StatusNotModified {
		t.Errorf("unchanged: %d", again.StatusCode)
	}
	before := h.current.Load()
	get(t, h, "/api/v1")
	if h.current.Load() != before {
		t.Error("documents were made anew without a change")
	}
	list = append(list, cronTab())
	after := get(t, h, "/apis", "Accept", acceptAggregated, "If-None-Match", etag)
	if after.StatusCode != http.StatusOK || after.Header.Get("ETag") == etag {
		t.Errorf("changed: %d, %s", after.StatusCode, after.Header.Get("ETag"))
	}
	if got := get(t, h, "/apis/stable.example.com/v1").StatusCode; got != http.StatusOK {
		t.Errorf("new kind: %d", got)
	}
}

func TestProtobuf(t *testing.T) {
	list := descriptors(t)
	h := New(func() []*resource.Descriptor { return list })
	const accept = "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	r := get(t, h, "/apis", "Accept", accept)
	if got := r.Header.Get("Content-Type"); got != accept {
		t.Errorf("type %q", got)
	}
	b := make([]byte, r.ContentLength)
	if _, err := r.Body.Read(b); err != nil {
		t.Fatal(err)
	}
	var u runtime.Unknown
	if err := u.Unmarshal(b[4:]); err != nil {
		t.Fatal(err)
	}
	var l apidiscoveryv2.APIGroupDiscoveryList
	if err := l.Unmarshal(u.Raw); err != nil {
		t.Fatal(err)
	}
	if string(b[:4]) != "k8s\x00" || u.Kind != "APIGroupDiscoveryList" || u.APIVersion != "apidiscovery.k8s.io/v2" || len(l.Items) != 5 {
		t.Errorf("envelope %q, %v, %d groups", b[:4], u.TypeMeta, len(l.Items))
	}
}

func TestErrors(t *testing.T) {
	list := append(descriptors(t), cronTab())
	h := New(func() []*resource.Descriptor { return list })
	for _, c := range []struct {
		path, accept string
		code         int
		contentType  string
	}{
		{"/apis/nope", "", 404, "text/plain; charset=utf-8"},
		{"/apis/apps/v9", "", 404, "application/json"},
		{"/apis/stable.example.com/v9", "", 404, "text/plain; charset=utf-8"},
		{"/apis/apps", "image/png", 406, "application/json"},
		{"/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", 406, "application/json"},
		{"/apis", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList, application/json", 200, "application/json"},
		{"/api/", "", 200, "application/json"},
		{"/apis/apps/v1", "application/yaml", 200, "application/yaml"},
		{"/api", acceptAggregated, 200, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"},
	} {
		r := get(t, h, c.path, "Accept", c.accept)
		if r.StatusCode != c.code || r.Header.Get("Content-Type") != c.contentType {
			t.Errorf("%s, %q: %d %s, want %d %s", c.path, c.accept, r.StatusCode, r.Header.Get("Content-Type"), c.code, c.contentType)
		}
	}
}

func FuzzAccept(f *testing.F) {
	f.Add(acceptAggregated)
	f.Add("application/yaml;q=0.1,*/*;q=.0.3;as=")
	f.Fuzz(func(t *testing.T, header string) {
		r := httptest.NewRequest(http.MethodGet, "/apis", http.NoBody)
		r.Header.Set("Accept", header)
		got, ok := negotiate(r, types.Types(false), true)
		if !ok && got.aggregated {
			t.Errorf("%q: refused, and aggregated", header)
		}
		switch got.mediaType {
		case mediaJSON, mediaYAML, mediaProtobuf:
		default:
			t.Errorf("%q: %v", header, got)
		}
	})
}

// TestLegacyGroupOrder checks that groups of CRDs are ordered in /apis by their smallest VERSION.GROUP, and in the
// aggregated document by name.
func TestLegacyGroupOrder(t *testing.T) {
	list := []*resource.Descriptor{
		customKind("aaa.example.com", "zebras", "v1"),
		customKind("docs.example.com", "widgets", "v1", "foo"),
	}
	h := New(func() []*resource.Descriptor { return list })
	for _, c := range []struct {
		accept string
		want   []string
	}{
		{"application/json", []string{"docs.example.com", "aaa.example.com"}},
		{acceptAggregated, []string{"aaa.example.com", "docs.example.com"}},
	} {
		r := httptest.NewRequest("GET", "/apis", nil)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var got struct {
			Groups []struct{ Name string }
			Items  []struct{ Metadata struct{ Name string } }
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, g := range got.Groups {
			names = append(names, g.Name)
		}
		for _, g := range got.Items {
			names = append(names, g.Metadata.Name)
		}
		if diff := cmp.Diff(c.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.accept, diff)
		}
	}
}

func customKind(group, name string, versions ...string) *resource.Descriptor {
	d := &resource.Descriptor{Group: group, Resource: name, Kind: name, Storage: versions[0]}
	for _, v := range versions {
		d.Versions = append(d.Versions, resource.Version{Name: v, New: func() resource.Object { return &unstructured.Unstructured{} }})
	}
	return d
}

// TestRoutesAndHandlers checks which paths are routes, with a router's errors, and which are plain handlers.
func TestRoutesAndHandlers(t *testing.T) {
	list := append(descriptors(t), customKind("docs.example.com", "widgets", "v1"))
	h := New(func() []*resource.Descriptor { return list })
	offered := strings.Join(types.Types(false), ", ")
	router, plain := "406: Not Acceptable\n\nAvailable representations: "+offered, "only the following media types are accepted: "+offered
	for _, c := range []struct {
		method, path, accept string
		code                 int
		message              string
	}{
		{"POST", "/api/v1", "", 405, "the server does not allow this method on the requested resource"},
		{"POST", "/apis", "", 200, ""},
		{"PUT", "/apis/apps", "", 200, ""},
		{"POST", "/apis/apps/v1", "", 405, "the server does not allow this method on the requested resource"},
		{"POST", "/apis/docs.example.com/v1", "", 200, ""},
		{"GET", "/api", "text/html", 406, router},
		{"GET", "/api/v1", "application/*", 406, router},
		{"GET", "/api/v1", "application/json;as=Table;v=v1;g=meta.k8s.io", 406, plain},
		{"GET", "/apis/apps/v1", "application/cbor", 406, router},
		{"GET", "/apis/docs.example.com/v1", "application/cbor", 406, plain},
		{"GET", "/apis", "text/html", 406, plain},
		{"GET", "/apis/", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 406, plain},
		{"GET", "/api/v2", "", 404, "the server could not find the requested resource"},
		{"GET", "/apis/apps/v2", "", 404, "the server could not find the requested resource"},
		{"GET", "/apis/docs.example.com/v2", "", 404, ""},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Header.Set("Accept", c.accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var got metav1.Status
		_ = json.Unmarshal(w.Body.Bytes(), &got) // plain text has no message
		if w.Code != c.code || got.Message != c.message {
			t.Errorf("%s %s (%s): %d %q, want %d %q", c.method, c.path, c.accept, w.Code, got.Message, c.code, c.message)
		}
	}
}

// TestCBOR checks which paths support CBOR: all but the versions of custom groups.
func TestCBOR(t *testing.T) {
	list := append(descriptors(t), customKind("docs.example.com", "widgets", "v1"))
	h := New(func() []*resource.Descriptor { return list })
	for path, want := range map[string]int{"/api": 200, "/api/v1": 200, "/apis": 200, "/apis/apps": 200, "/apis/apps/v1": 200,
		"/apis/docs.example.com": 200, "/apis/docs.example.com/v1": 406} {
		r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
		r.Header.Set("Accept", types.CBOR)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(types.WithCBOR(r.Context(), true)))
		var got map[string]any
		if w.Code == http.StatusOK {
			if err := cbor.Unmarshal(w.Body.Bytes(), &got); err != nil || got["kind"] == "" || w.Header().Get("Content-Type") != types.CBOR {
				t.Errorf("%s: %s %v, error %v", path, w.Header().Get("Content-Type"), got, err)
			}
		}
		if w.Code != want {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
		w = httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusNotAcceptable {
			t.Errorf("%s of a server without CBOR: %d", path, w.Code)
		}
	}
}

// TestLargeDocumentsAreCompressed checks compression for clients that accept it.
func TestLargeDocumentsAreCompressed(t *testing.T) {
	list := descriptors(t)
	for i := range 600 {
		list = append(list, customKind("docs.example.com", fmt.Sprintf("widgets%03d", i), "v1"))
	}
	h := New(func() []*resource.Descriptor { return list })
	ask := func(path, encoding string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Accept", acceptAggregated)
		r.Header.Set("Accept-Encoding", encoding)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	plain := ask("/apis", "")
	for range 2 { // made, and cached
		w := ask("/apis", "br, gzip")
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(z)
		if err != nil || !bytes.Equal(b, plain.Body.Bytes()) || w.Header().Get("Content-Encoding") != "gzip" {
			t.Errorf("%v, %d of %d bytes, %v", err, len(b), plain.Body.Len(), w.Header())
		}
	}
	if w := ask("/api", "gzip"); w.Header().Get("Content-Encoding") != "" {
		t.Error("a small document is compressed")
	}
}
