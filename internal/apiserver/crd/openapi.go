// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/resource"
)

const (
	objectMetaModel   = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
	objectMetaModelV2 = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// ModelName is the name of a kind in OpenAPI: com.example.stable.v1.CronTab.
func ModelName(group, version, kind string) string {
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + version + "." + kind
}

// Schema returns a new copy of the OpenAPI v3 schema of a version's objects; nil if the descriptor is not from a definition
// or has no such version. It refers to ObjectMeta under #/components/schemas/.
func Schema(d *resource.Descriptor, version string) *spec.Schema {
	v := versionOf(d, version)
	if v == nil {
		return nil
	}
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	if own := v.fresh(); own != nil {
		s = own.Unfold().ToKubeOpenAPI()
		addMeta(s, false)
		embed(s, false)
	}
	s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": d.Group, "version": version, "kind": d.Kind}})
	return s
}

// SchemaV2 is the same for OpenAPI v2, which cannot express all of it; it refers to ObjectMeta under #/definitions/.
func SchemaV2(d *resource.Descriptor, version string) *spec.Schema {
	v := versionOf(d, version)
	if v == nil {
		return nil
	}
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	// If there are unknown fields, the document lists no others, or clients would reject the unknown ones.
	if !v.shape.none && !v.shape.unknown && !v.keep {
		s = openapiv2.ToStructuralOpenAPIV2(v.fresh().Unfold()).ToKubeOpenAPI()
		stripDefaults(s)
		addMeta(s, true)
		embed(s, true)
	}
	s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": d.Group, "version": version, "kind": d.Kind}})
	return s
}

// stripDefaults removes default values, which upstream's OpenAPI v2 omits for custom kinds.
func stripDefaults(s *spec.Schema) {
	if s == nil {
		return
	}
	s.Default = nil
	for name, p := range s.Properties {
		stripDefaults(&p)
		s.Properties[name] = p
	}
	if s.Items != nil {
		stripDefaults(s.Items.Schema)
	}
	if s.AdditionalProperties != nil {
		stripDefaults(s.AdditionalProperties.Schema)
	}
}

func addMeta(s *spec.Schema, v2 bool) {
	docs := metav1.TypeMeta{}.SwaggerDoc()
	s.SetProperty("metadata", metadataSchema(v2))
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription(docs["apiVersion"]))
	s.SetProperty("kind", *spec.StringProperty().WithDescription(docs["kind"]))
}

// SelectableFields are the paths of a version's selectable fields, as OpenAPI lists them; nil if there are none.
func SelectableFields(d *resource.Descriptor, version string) []any {
	v := versionOf(d, version)
	if v == nil {
		return nil
	}
	var out []any
	for _, f := range v.selectable {
		out = append(out, map[string]any{"fieldPath": f.name})
	}
	return out
}

// SchemaDigest returns a digest of the results of [Schema], [SchemaV2] and [SelectableFields] for a version, without computing them; nil
// where these are nil.
func SchemaDigest(d *resource.Descriptor, version string) []byte {
	v := versionOf(d, version)
	if v == nil {
		return nil
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%x %t %t %q %q %q", v.shape.fields, v.shape.keep, v.keep, d.Group, version, d.Kind)
	for _, f := range v.selectable {
		fmt.Fprintf(sum, " %q", f.name)
	}
	return sum.Sum(nil)
}

// IsCustom reports whether the kind of a descriptor comes from a definition.
func IsCustom(d *resource.Descriptor) bool {
	_, ok := d.Codec.(codec)
	return ok
}

// SchemaBytes is the size of a kind's schemas as JSON; 0 if it is not from a definition.
func SchemaBytes(d *resource.Descriptor) int64 {
	c, ok := d.Codec.(codec)
	if !ok {
		return 0
	}
	var n int64
	for _, v := range c.k.versions {
		n += v.shape.size
	}
	return n
}

// KeepsUnknown reports whether the objects of a version may have any fields (spec.preserveUnknownFields).
func KeepsUnknown(d *resource.Descriptor, version string) bool {
	v := versionOf(d, version)
	return v != nil && v.keep
}

// ReplicasPath is the path of the field that a version's scale subresource sets; nil if it has none.
func ReplicasPath(d *resource.Descriptor, version string) []string {
	v := versionOf(d, version)
	if v == nil || v.scale() == nil {
		return nil
	}
	return splitPath(v.scale().SpecReplicasPath)
}

// fresh returns a new copy of the version's schema, for rare callers that change it; nil if there is none.
func (v *version) fresh() *structuralschema.Structural {
	s, err := v.shape.fresh()
	if err != nil { // as in structural
		panic(fmt.Sprintf("schema of %s %s cannot be read again: %v", v.k.name, v.name, err))
	}
	return s
}

func versionOf(d *resource.Descriptor, name string) *version {
	c, ok := d.Codec.(codec)
	if !ok {
		return nil
	}
	return c.k.versions[name]
}

func metadataSchema(v2 bool) spec.Schema {
	text := metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]
	if v2 {
		return *spec.RefSchema(objectMetaModelV2).WithDescription(text)
	}
	s := spec.Schema{}
	s.Description = text
	s.AllOf = []spec.Schema{*spec.RefSchema(objectMetaModel)}
	return s
}

// embed gives embedded resources their apiVersion, kind and metadata.
func embed(s *spec.Schema, v2 bool) {
	if s == nil {
		return
	}
	for name, p := range s.Properties {
		embed(&p, v2)
		s.Properties[name] = p
	}
	if s.Items != nil {
		embed(s.Items.Schema, v2)
	}
	if s.AdditionalProperties != nil {
		embed(s.AdditionalProperties.Schema, v2)
	}
	if keeps, ok := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); ok && keeps && v2 {
		return
	}
	if is, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !ok || !is {
		return
	}
	const conventions = "More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription(
		"apiVersion defines the versioned schema of this representation of an object. " + conventions + "#resources"))
	s.SetProperty("kind", *spec.StringProperty().WithDescription(
		"kind is a string value representing the type of this object. In CamelCase. " + conventions + "#types-kinds"))
	s.SetProperty("metadata", metadataSchema(v2))
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}
