// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/resource"
)

const deleteOptions = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"

// remoteV2 returns the v2 part of a server whose own kind is Thing.
func remoteV2(t *testing.T, group string, doc map[string]any) RemoteV2 {
	t.Helper()
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	var s spec.Swagger
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	body, err := NewRemoteV2(&s, group, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return RemoteV2{Name: "v1." + group, Group: group, Version: "v1", Tag: "x", Body: body}
}

// served returns the documents of a server without kinds of its own, with those of other servers.
func served(t *testing.T, remote *Remote) *Handler {
	t.Helper()
	return New(func() []*resource.Descriptor { return nil }, nil).With(func() *Remote { return remote })
}

func read(t *testing.T, h *Handler, path, accept string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestRemoteV2IsMerged checks that different definitions are renamed, equal ones shared, kinds added to definitions of
// all groups, and invalid documents omitted.
func TestRemoteV2IsMerged(t *testing.T) {
	s, err := readStatic()
	if err != nil {
		t.Fatal(err)
	}
	own, err := ownDefinitions(s)
	if err != nil {
		t.Fatal(err)
	}
	var options map[string]any
	if err := json.Unmarshal(own[deleteOptions], &options); err != nil {
		t.Fatal(err)
	}
	before := len(options[kindExtension].([]any))
	options[kindExtension] = []any{map[string]any{"group": "a.example.com", "version": "v1", "kind": "DeleteOptions"}}
	ref := func(name string) map[string]any { return map[string]any{"$ref": "#/definitions/" + name} }
	path := func(group string) string { return "/apis/" + group + "/v1/things" }
	doc := func(group string) map[string]any {
		return map[string]any{
			"swagger": "2.0", "info": map[string]any{"title": "x", "version": "1"},
			"paths": map[string]any{
				path(group): map[string]any{
					"parameters": []any{map[string]any{"$ref": "#/parameters/strange"}},
					"delete": map[string]any{
						"parameters": []any{map[string]any{"name": "body", "in": "body", "schema": ref(deleteOptions)}},
						"responses": map[string]any{"200": map[string]any{"description": "OK",
							"schema": ref("io.k8s.apimachinery.pkg.apis.meta.v1.Status")}},
					},
				},
				"/apis/other.example.com/v1/x": map[string]any{},
			},
			"parameters": map[string]any{"strange": map[string]any{"name": "strange", "in": "query", "type": "string", "uniqueItems": true}},
			"definitions": map[string]any{
				deleteOptions: options,
				"io.k8s.apimachinery.pkg.apis.meta.v1.Status": map[string]any{"type": "object", "description": "of another kind"},
			},
		}
	}
	garbage := RemoteV2{Name: "v1.garbage.example.com", Group: "garbage.example.com", Version: "v1", Tag: "y", Body: []byte("garbage")}
	h := served(t, &Remote{V2: []RemoteV2{remoteV2(t, "a.example.com", doc("a.example.com")), garbage,
		remoteV2(t, "b.example.com", doc("b.example.com"))}})
	var got struct {
		Paths       map[string]map[string]any
		Definitions map[string]map[string]any
	}
	w := read(t, h, "/openapi/v2", "application/json")
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"a.example.com", "b.example.com"} {
		item := got.Paths[path(group)]
		if item == nil {
			t.Fatalf("%s is not there", path(group))
		}
		if p := item["parameters"].([]any)[0].(map[string]any); p["name"] != "strange" {
			t.Errorf("%s: parameter %v: its reference leads nowhere", group, p)
		}
		status := item["delete"].(map[string]any)["responses"].(map[string]any)["200"].(map[string]any)["schema"].(map[string]any)["$ref"]
		if status != "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status_v2" {
			t.Errorf("%s: another definition of the same name is %v", group, status)
		}
	}
	if got.Paths["/apis/other.example.com/v1/x"] != nil {
		t.Error("paths of what is not registered")
	}
	if got.Paths["/api/v1/pods"] == nil ||
		got.Definitions["io.k8s.apimachinery.pkg.apis.meta.v1.Status_v2"]["description"] != "of another kind" {
		t.Error("definitions or paths are missing")
	}
	if n := len(got.Definitions[deleteOptions][kindExtension].([]any)); n != before+1 {
		t.Errorf("DeleteOptions is of %d kinds, want %d", n, before+1)
	}
	if got.Definitions[deleteOptions+"_v2"] != nil {
		t.Error("the same definition is there twice")
	}
	b := read(t, h, "/openapi/v2", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf").Body.Bytes()
	var message openapi_v2.Document
	if err := proto.Unmarshal(b, &message); err != nil {
		t.Fatal(err)
	}
	found := false
	for _, p := range message.Paths.Path {
		found = found || p.Name == path("a.example.com")
	}
	if !found {
		t.Error("the protobuf form lacks the other server's paths")
	}
}

// TestRemoteV3 lists, fetches, redirects and rejects documents.
func TestRemoteV3(t *testing.T) {
	good, err := Pack([]byte(`{"openapi":"3.0.0"}`))
	if err != nil {
		t.Fatal(err)
	}
	h := served(t, &Remote{V3: map[string]*RemoteDocument{
		"apis/a.example.com/v1": {Name: "v1.a.example.com", Hash: "H", Get: func(_ context.Context, contentType string) ([]byte, bool, error) {
			if contentType != "application/json" {
				return nil, false, errors.New(contentType)
			}
			return good, true, nil
		}},
		"apis/b.example.com/v1": {Name: "v1.b.example.com", Get: func(context.Context, string) ([]byte, bool, error) {
			return nil, false, errors.New("nobody is there")
		}},
	}})
	index := read(t, h, "/openapi/v3", "").Body.String()
	for _, want := range []string{`"apis/a.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/a.example.com/v1?hash=H"}`,
		`"apis/b.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/b.example.com/v1"}`, `"api/v1":`} {
		if !strings.Contains(index, want) {
			t.Errorf("the index lacks %s", want)
		}
	}
	for _, c := range []struct {
		path, accept string
		code         int
		header, is   string
		body         string
	}{
		{"/openapi/v3/apis/a.example.com/v1", "", 200, "Etag", `"H"`, `{"openapi":"3.0.0"}`},
		{"/openapi/v3/apis/a.example.com/v1?hash=H", "", 200, "Cache-Control", "public, immutable", `{"openapi":"3.0.0"}`},
		{"/openapi/v3/apis/a.example.com/v1?hash=old", "", 301, "Location", "/openapi/v3/apis/a.example.com/v1?hash=H", ""},
		{"/openapi/v3/apis/a.example.com/v1", "text/html", 406, "Vary", "Accept", ""},
		{"/openapi/v3/apis/b.example.com/v1", "", 503, "Content-Type", "text/plain; charset=utf-8",
			"openapi: APIService v1.b.example.com: nobody is there\n"},
		{"/openapi/v3/api/v1", "", 200, "Content-Type", "application/json", ""},
	} {
		w := read(t, h, c.path, c.accept)
		if w.Code != c.code || w.Header().Get(c.header) != c.is || (c.body != "" && w.Body.String() != c.body) {
			t.Errorf("%s: %d, %s %q, %.80q; want %d, %q, %q", c.path, w.Code, c.header, w.Header().Get(c.header), w.Body, c.code, c.is, c.body)
		}
	}
}
