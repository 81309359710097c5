// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"

	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/resource"
)

// documents serves the paths that are not resources: discovery, OpenAPI, the version. The server creates them once.
type documents struct {
	discovery http.Handler
	version   []byte
	index     []byte              // /openapi/v3
	v3        map[string]document // by path: apis/GROUP/VERSION
	v2        document
	since     time.Time
}

type document struct {
	body []byte
	hash string
}

func newDocuments(list []Resource) (*documents, error) {
	d := &documents{v3: map[string]document{}}
	var err error
	if d.version, err = json.MarshalIndent(version.Info{
		Major: "1", Minor: "37", GitVersion: "v1.37.1", GoVersion: runtime.Version(), Compiler: runtime.Compiler,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}, "", "  "); err != nil {
		return nil, fmt.Errorf("encode version: %w", err)
	}
	kinds := descriptors(list)
	d.discovery = discovery.New(func() []*resource.Descriptor { return kinds })

	type entry struct {
		ServerRelativeURL string `json:"serverRelativeURL"`
	}
	index := map[string]entry{}
	byVersion := map[string][]*Resource{}
	for i := range list {
		p := "apis/" + list[i].gvk().GroupVersion().String()
		byVersion[p] = append(byVersion[p], &list[i])
	}
	whole := map[string]any{}
	definitions := map[string]any{}
	for p, of := range byVersion {
		paths, schemas := map[string]any{}, map[string]any{}
		for _, r := range of {
			if err := r.describe(paths, schemas, "#/components/schemas/", true); err != nil {
				return nil, err
			}
			if err := r.describe(whole, definitions, "#/definitions/", false); err != nil {
				return nil, err
			}
		}
		doc, err := newDocument(map[string]any{"openapi": "3.0.0", "info": info, "paths": paths,
			"components": map[string]any{"schemas": schemas}})
		if err != nil {
			return nil, err
		}
		d.v3[p], index[p] = doc, entry{"/openapi/v3/" + p + "?hash=" + url.QueryEscape(doc.hash)}
	}
	if d.v2, err = newDocument(map[string]any{"swagger": "2.0", "info": info, "paths": whole, "definitions": definitions}); err != nil {
		return nil, err
	}
	if d.index, err = json.Marshal(map[string]any{"paths": index}); err != nil {
		return nil, fmt.Errorf("encode OpenAPI: %w", err)
	}
	return d, nil
}

var info = map[string]any{"title": "Kubernetes", "version": "unversioned"}

func newDocument(content any) (document, error) {
	b, err := json.Marshal(content)
	if err != nil {
		return document{}, fmt.Errorf("encode OpenAPI: %w", err)
	}
	return document{b, fmt.Sprintf("%X", sha512.Sum512(b))}, nil
}

// descriptors converts the resources to the descriptors for discovery: one for each kind, with all its versions.
func descriptors(list []Resource) []*resource.Descriptor {
	var out []*resource.Descriptor
	for i := range list {
		r := &list[i]
		out = append(out, &resource.Descriptor{
			Group: r.Group, Resource: r.Name, Singular: r.singular(), Kind: r.Kind, ListKind: r.Kind + "List", ShortNames: r.ShortNames,
			Categories: r.Categories,
			Namespaced: r.Namespaced, Verbs: r.verbs(), Storage: r.Version,
			Versions: []resource.Version{{Name: r.Version, New: func() resource.Object { return r.fresh() }}},
		})
	}
	return out
}

// describe adds a resource to OpenAPI. Clients find its schema by the kind in paths and schemas.
func (r *Resource) describe(paths, schemas map[string]any, refs string, v3 bool) error {
	gvk := r.gvk()
	mark := map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
	parts := strings.Split(gvk.Group, ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	name := strings.Join(append(parts, gvk.Version, gvk.Kind), ".")
	schema := map[string]any{"type": "object"}
	if r.Schema != nil {
		b, err := json.Marshal(r.Schema)
		if err != nil {
			return fmt.Errorf("encode schema of %s: %w", r.groupResource(), err)
		}
		if err := json.Unmarshal(b, &schema); err != nil {
			return fmt.Errorf("encode schema of %s: %w", r.groupResource(), err)
		}
	} else {
		schema["x-kubernetes-preserve-unknown-fields"] = true
	}
	properties, _ := schema["properties"].(map[string]any)
	properties = maps.Clone(properties)
	if properties == nil {
		properties = map[string]any{}
	}
	docs := metav1.TypeMeta{}.SwaggerDoc()
	properties["apiVersion"] = map[string]any{"type": "string", "description": docs["apiVersion"]}
	properties["kind"] = map[string]any{"type": "string", "description": docs["kind"]}
	properties["metadata"] = map[string]any{"type": "object", "description": "Standard object's metadata.",
		"x-kubernetes-preserve-unknown-fields": true}
	schema["properties"] = properties
	schema["x-kubernetes-group-version-kind"] = []any{mark}
	schemas[name] = schema

	base := "/apis/" + gvk.GroupVersion().String() + "/"
	if r.Namespaced {
		base += "namespaces/{namespace}/"
	}
	ref := map[string]any{"$ref": refs + name}
	ok := map[string]any{"description": "OK", "schema": ref}
	if v3 {
		ok = map[string]any{"description": "OK", "content": map[string]any{"application/json": map[string]any{"schema": ref}}}
	}
	can := map[string]bool{}
	for _, v := range r.verbs() {
		can[v] = true
	}
	for p, verbs := range map[string][][2]string{
		base + r.Name:             {{"get", "list"}, {"post", "create"}, {"delete", "deletecollection"}},
		base + r.Name + "/{name}": {{"get", "get"}, {"put", "update"}, {"patch", "patch"}, {"delete", "delete"}},
	} {
		item := map[string]any{}
		for _, v := range verbs {
			if !can[v[1]] {
				continue
			}
			op := map[string]any{
				"operationId": v[1] + gvk.Version + gvk.Kind + strconv.Itoa(len(paths)), "responses": map[string]any{"200": ok},
				"x-kubernetes-group-version-kind": mark, "x-kubernetes-action": v[1],
			}
			item[v[0]] = op
		}
		if len(item) > 0 {
			paths[p] = item
		}
	}
	return nil
}

// serve serves a path that is not a resource's.
func (d *documents) serve(w http.ResponseWriter, r *http.Request) {
	p := r.URL.Path
	switch {
	case p == "/version":
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(d.version) // a client that went away needs no answer
	case p == "/openapi/v3":
		w.Header().Set("Content-Type", "application/json")
		http.ServeContent(w, r, "", d.since, bytes.NewReader(d.index))
	case p == "/openapi/v2":
		d.send(w, r, d.v2)
	case strings.HasPrefix(p, "/openapi/v3/"):
		doc, ok := d.v3[strings.TrimPrefix(p, "/openapi/v3/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		d.send(w, r, doc)
	case p == "/api" || p == "/apis" || strings.HasPrefix(p, "/apis/"):
		d.discovery.ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (d *documents) send(w http.ResponseWriter, r *http.Request, doc document) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("ETag", strconv.Quote(doc.hash))
	http.ServeContent(w, r, "", d.since, bytes.NewReader(doc.body))
}
