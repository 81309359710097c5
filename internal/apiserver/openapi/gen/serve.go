// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// release is what the documents say of their version; the module's say unversioned.
const release = "1.37"

// off reports whether a media type is served only behind a feature gate that is off by default.
func off(media string) bool { return strings.Contains(media, "cbor") }

// serveV3 makes of a document in the module the one that a server with default feature gates sends.
func serveV3(raw []byte, es enums) ([]byte, error) {
	var doc spec3.OpenAPI
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	doc.Info.Version = release
	for _, p := range doc.Paths.Paths {
		for _, op := range []*spec3.Operation{p.Get, p.Put, p.Post, p.Delete, p.Options, p.Head, p.Patch} {
			if op == nil {
				continue
			}
			ordered(op.Extensions)
			if op.RequestBody != nil {
				drop(op.RequestBody.Content)
			}
			if op.Responses == nil {
				continue
			}
			for _, r := range op.Responses.StatusCodeResponses {
				drop(r.Content)
			}
		}
	}
	if doc.Components != nil {
		for model, s := range doc.Components.Schemas {
			es.add(model, s)
		}
	}
	return json.Marshal(&doc)
}

// ordered has an operation say group, version and kind in the order in which kube-apiserver writes them.
func ordered(extensions spec.Extensions) {
	const key = "x-kubernetes-group-version-kind"
	if gvk, ok := extensions[key].(map[string]any); ok {
		extensions[key] = struct {
			Group   any `json:"group"`
			Version any `json:"version"`
			Kind    any `json:"kind"`
		}{gvk["group"], gvk["version"], gvk["kind"]}
	}
}

func drop(content map[string]*spec3.MediaType) {
	for media := range content {
		if off(media) {
			delete(content, media)
		}
	}
}

// serveV2 does the same with the one document of v2, and leaves out the paths that are not served and what only they refer to.
func serveV2(raw []byte, es enums, served func(path string) bool) (*spec.Swagger, error) {
	var doc spec.Swagger
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	doc.Info.Version = release
	for path, item := range doc.Paths.Paths {
		if !served(path) {
			delete(doc.Paths.Paths, path)
			continue
		}
		for _, op := range []*spec.Operation{item.Get, item.Put, item.Post, item.Delete, item.Options, item.Head, item.Patch} {
			if op != nil {
				if strings.HasPrefix(path, "/apis/apiregistration.k8s.io/") { // which the aggregator adds itself; the others it has parsed
					ordered(op.Extensions)
				}
				op.Consumes, op.Produces = without(op.Consumes), without(op.Produces)
			}
		}
	}
	for model, s := range doc.Definitions {
		es.add(model, &s)
		doc.Definitions[model] = s
	}
	return &doc, prune(&doc)
}

func without(media []string) []string {
	var kept []string
	for _, m := range media {
		if !off(m) {
			kept = append(kept, m)
		}
	}
	return kept
}

var reference = regexp.MustCompile(`"#/(definitions|parameters)/([^"]+)"`)

// prune removes the definitions and parameters that nothing served refers to.
func prune(doc *spec.Swagger) error {
	b, err := json.Marshal(doc.Paths)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	for todo := [][]byte{b}; len(todo) > 0; {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, m := range reference.FindAllSubmatch(last, -1) {
			what, name := string(m[1]), string(m[2])
			if wanted[what+name] {
				continue
			}
			wanted[what+name] = true
			var v any = doc.Definitions[name]
			if what == "parameters" {
				v = doc.Parameters[name]
			}
			if b, err = json.Marshal(v); err != nil {
				return err
			}
			todo = append(todo, b)
		}
	}
	for name := range doc.Definitions {
		if !wanted["definitions"+name] {
			delete(doc.Definitions, name)
		}
	}
	for name := range doc.Parameters {
		if !wanted["parameters"+name] {
			delete(doc.Parameters, name)
		}
	}
	return nil
}
