// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

const (
	schemaRef = "#/components/schemas/"
	metaModel = "io.k8s.apimachinery.pkg.apis.meta.v1."
	// The models that lists and Scale refer to.
	listMeta   = metaModel + "ListMeta"
	scaleModel = "io.k8s.api.autoscaling.v1.Scale"
)

// customDocument returns the v3 document of a group version of custom resources, which is made at its first request.
func customDocument(s *static, version string, kinds []*resource.Descriptor) *document {
	made := sync.OnceValues(func() ([]byte, error) { return makeCustom(s, version, kinds) })
	return &document{
		hash: sync.OnceValues(func() (string, error) { return customHash(version, kinds), nil }),
		json: made,
		protobuf: sync.OnceValues(func() ([]byte, error) {
			b, err := made()
			if err != nil {
				return nil, err
			}
			if b, err = inflate(b); err != nil {
				return nil, err
			}
			doc, err := openapi_v3.ParseDocument(b)
			if err != nil {
				return nil, fmt.Errorf("parse document: %w", err)
			}
			if b, err = proto.Marshal(doc); err != nil {
				return nil, fmt.Errorf("encode document: %w", err)
			}
			return deflate(b)
		}),
	}
}

// layout is increased when the same definition results in another document than before, since clients cache documents
// by hash.
const layout = 1

// customHash identifies the result of makeCustom, and costs next to nothing: the index contains the hashes of all
// documents, and its clients rarely request more than one of them.
func customHash(version string, kinds []*resource.Descriptor) string {
	sum := sha512.New()
	fmt.Fprintf(sum, "%d %q\n", layout, version)
	for _, d := range kinds {
		fmt.Fprintf(sum, "%q %q %q %t %x", d.Resource, d.Kind, d.ListKind, d.Namespaced, crd.SchemaDigest(d, version))
		for _, sub := range d.Subresources {
			if sub.Versions == nil || slices.Contains(sub.Versions, version) {
				fmt.Fprintf(sum, " %q", sub.Name)
			}
		}
		fmt.Fprintln(sum)
	}
	return fmt.Sprintf("%X", sum.Sum(nil))
}

func makeCustom(s *static, version string, kinds []*resource.Descriptor) ([]byte, error) {
	shared, err := s.schemas()
	if err != nil {
		return nil, err
	}
	schemas, paths := map[string]any{}, map[string]any{}
	for _, d := range kinds {
		object := crd.Schema(d, version)
		list := listSchema(d, version, schemaRef)
		if fields := crd.SelectableFields(d, version); fields != nil {
			object.AddExtension("x-kubernetes-selectable-fields", fields)
			list["x-kubernetes-selectable-fields"] = fields
		}
		schemas[crd.ModelName(d.Group, version, d.Kind)] = object
		schemas[crd.ModelName(d.Group, version, d.ListKind)] = list
		routes(d, version, paths)
	}
	// The schemas that the schemas and paths refer to, and so on.
	b, err := json.Marshal([]any{schemas, paths})
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	for todo := [][]byte{b}; len(todo) > 0; {
		last := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, name := range references(last, schemaRef) {
			if raw, ok := shared[name]; ok && schemas[name] == nil {
				schemas[name] = raw
				todo = append(todo, raw)
			}
		}
	}
	b, err = json.Marshal(map[string]any{
		"openapi":    "3.0.0",
		"info":       map[string]any{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"},
		"paths":      paths,
		"components": map[string]any{"schemas": schemas},
	})
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	if b, err = inOrder(b); err != nil {
		return nil, err
	}
	return deflate(b)
}

// inOrder encodes a v3 document with its fields in kube-apiserver's order.
func inOrder(b []byte) ([]byte, error) {
	var doc spec3.OpenAPI
	if err := json.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("parse document: %w", err)
	}
	for _, p := range doc.Paths.Paths {
		for _, op := range []*spec3.Operation{p.Get, p.Put, p.Post, p.Delete, p.Patch} {
			if op == nil {
				continue
			}
			if gvk, ok := op.Extensions[kindExtension].(map[string]any); ok {
				op.Extensions[kindExtension] = gvkInOrder{gvk["group"], gvk["version"], gvk["kind"]}
			}
		}
	}
	for _, s := range doc.Components.Schemas {
		if err := rulesInOrder(s); err != nil {
			return nil, err
		}
	}
	b, err := json.Marshal(&doc)
	if err != nil {
		return nil, fmt.Errorf("encode document: %w", err)
	}
	return b, nil
}

// rulesInOrder does the same for the validation rules of a schema and of all schemas below it.
func rulesInOrder(s *spec.Schema) error {
	const key = "x-kubernetes-validations"
	if raw, ok := s.Extensions[key]; ok {
		b, err := json.Marshal(raw)
		if err != nil {
			return fmt.Errorf("encode validation rules: %w", err)
		}
		var rules []apiextensionsv1.ValidationRule
		if err := json.Unmarshal(b, &rules); err != nil {
			return fmt.Errorf("parse validation rules: %w", err)
		}
		s.Extensions[key] = rules
	}
	for name, p := range s.Properties {
		if err := rulesInOrder(&p); err != nil {
			return err
		}
		s.Properties[name] = p
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		if err := rulesInOrder(a.Schema); err != nil {
			return err
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		return rulesInOrder(s.Items.Schema)
	}
	return nil
}

const kindExtension = "x-kubernetes-group-version-kind"

type gvkInOrder struct {
	Group   any `json:"group"`
	Version any `json:"version"`
	Kind    any `json:"kind"`
}

// references returns the names that follow a prefix in JSON.
func references(b []byte, prefix string) []string {
	var names []string
	marker := []byte(`"` + prefix)
	for {
		i := bytes.Index(b, marker)
		if i < 0 {
			return names
		}
		b = b[i+len(marker):]
		end := bytes.IndexByte(b, '"')
		if end < 0 {
			return names
		}
		names = append(names, string(b[:end]))
	}
}

// listSchema returns the schema of a kind's list. refs is the prefix of references to schemas.
func listSchema(d *resource.Descriptor, version, refs string) map[string]any {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	meta := map[string]any{"$ref": refs + listMeta}
	if refs == schemaRef { // a $ref must not have siblings
		meta = map[string]any{"allOf": []any{meta}}
	}
	meta["description"] = metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]
	return map[string]any{
		"type":        "object",
		"description": d.ListKind + " is a list of " + d.Kind,
		"required":    []string{"items"},
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string", "description": docs["apiVersion"]},
			"kind":       map[string]any{"type": "string", "description": docs["kind"]},
			"items": map[string]any{
				"type": "array",
				"description": "List of " + d.Resource +
					". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md",
				"items": map[string]any{"$ref": refs + crd.ModelName(d.Group, version, d.Kind)},
			},
			"metadata": meta,
		},
		"x-kubernetes-group-version-kind": []any{map[string]any{"group": d.Group, "version": version, "kind": d.ListKind}},
	}
}
