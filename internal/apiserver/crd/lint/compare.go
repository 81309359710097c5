// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
)

// Compare returns the errors of the server for an update from old to def, and the breaking changes of the update:
// removed versions and fields, and values that become invalid.
func Compare(ctx context.Context, old, def *v1.CustomResourceDefinition) []Finding {
	kind := crd.Definitions()
	before, after := old.DeepCopy(), def.DeepCopy()
	for _, d := range []*v1.CustomResourceDefinition{before, after} {
		kind.Hub().Default(d)
		kind.Strategy.PrepareCreate(ctx, d)
		d.ResourceVersion = "1"
	}
	kind.Strategy.PrepareUpdate(ctx, after, before)
	c := &comparison{out: refused(kind.Strategy.ValidateUpdate(ctx, after, before))}
	c.definitions(before, after)
	return c.out
}

type comparison struct{ out []Finding }

func (c *comparison) breaks(path *field.Path, format string, args ...any) {
	c.out = append(c.out, Finding{Breaking, path.String(), fmt.Sprintf(format, args...)})
}

func (c *comparison) definitions(old, def *v1.CustomResourceDefinition) {
	spec := field.NewPath("spec")
	if old.Spec.Scope != def.Spec.Scope {
		c.breaks(spec.Child("scope"), "changed from %s to %s", old.Spec.Scope, def.Spec.Scope)
	}
	for _, s := range old.Spec.Names.ShortNames {
		if !slices.Contains(def.Spec.Names.ShortNames, s) {
			c.breaks(spec.Child("names", "shortNames"), "%q was removed", s)
		}
	}
	stored := ""
	for _, v := range def.Spec.Versions {
		if v.Storage {
			stored = v.Name
		}
	}
	for i, before := range old.Spec.Versions {
		at := slices.IndexFunc(def.Spec.Versions, func(v v1.CustomResourceDefinitionVersion) bool { return v.Name == before.Name })
		if before.Storage && stored != before.Name {
			c.out = append(c.out,
				Finding{Note, spec.Child("versions").String(), fmt.Sprintf(
					"the storage version changes from %s to %s: migrate stored objects before %s is removed", before.Name, stored, before.Name)})
		}
		if at < 0 {
			if before.Served || before.Storage {
				c.breaks(spec.Child("versions").Index(i), "version %s was removed", before.Name)
			}
			continue
		}
		after, path := def.Spec.Versions[at], spec.Child("versions").Index(at)
		if before.Served && !after.Served {
			c.breaks(path.Child("served"), "version %s is no longer served", before.Name)
			continue
		}
		c.versions(path, &before, &after)
	}
}

func (c *comparison) versions(path *field.Path, old, v *v1.CustomResourceDefinitionVersion) {
	had, has := old.Subresources, v.Subresources
	if had != nil && had.Status != nil && (has == nil || has.Status == nil) {
		c.breaks(path.Child("subresources", "status"), "was removed")
	}
	if had != nil && had.Scale != nil && (has == nil || !apiequality.Semantic.DeepEqual(had.Scale, has.Scale)) {
		c.breaks(path.Child("subresources", "scale"), "was removed or reads other fields")
	}
	if (had == nil || had.Status == nil) && has != nil && has.Status != nil {
		c.breaks(path.Child("subresources", "status"), "is new: a status in a write of the object is ignored from now on")
	}
	for _, f := range old.SelectableFields {
		if !slices.ContainsFunc(v.SelectableFields, func(g v1.SelectableField) bool { return g.JSONPath == f.JSONPath }) {
			c.breaks(path.Child("selectableFields"), "%s was removed", f.JSONPath)
		}
	}
	if old.Schema == nil || v.Schema == nil {
		return
	}
	c.schemas(path.Child("schema", "openAPIV3Schema"), old.Schema.OpenAPIV3Schema, v.Schema.OpenAPIV3Schema)
}

// schemas compares two schema nodes at the same path.
func (c *comparison) schemas(path *field.Path, old, s *v1.JSONSchemaProps) {
	if old == nil || s == nil {
		return
	}
	c.kinds(path, old, s)
	c.values(path, old, s)
	for _, name := range slices.Sorted(maps.Keys(old.Properties)) {
		before, child := old.Properties[name], path.Child("properties").Key(name)
		after, ok := s.Properties[name]
		switch {
		case ok:
			c.schemas(child, &before, &after)
		case keeps(s):
		default:
			c.breaks(child, "the field was removed: stored values of it are dropped")
		}
	}
	for _, name := range s.Required {
		if !slices.Contains(old.Required, name) && s.Properties[name].Default == nil {
			c.breaks(path.Child("required"), "%s is required now", name)
		}
	}
	if old.Items != nil && s.Items != nil {
		c.schemas(path.Child("items"), old.Items.Schema, s.Items.Schema)
	}
	if a, b := old.AdditionalProperties, s.AdditionalProperties; a != nil && a.Schema != nil {
		if b == nil || b.Schema == nil {
			if !keeps(s) {
				c.breaks(path.Child("additionalProperties"), "other keys are no longer kept")
			}
		} else {
			c.schemas(path.Child("additionalProperties"), a.Schema, b.Schema)
		}
	}
}

// keeps reports whether a node keeps unknown fields.
func keeps(s *v1.JSONSchemaProps) bool {
	return s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields || s.AdditionalProperties != nil
}

// kinds compares the types of two nodes.
func (c *comparison) kinds(path *field.Path, old, s *v1.JSONSchemaProps) {
	if old.Type != s.Type && !(old.Type == "integer" && s.Type == "number") && !(s.Type == "" && s.XIntOrString) {
		c.breaks(path.Child("type"), "changed from %s to %s", orNone(old.Type), orNone(s.Type))
	}
	if old.XIntOrString && !s.XIntOrString {
		c.breaks(path.Child("x-kubernetes-int-or-string"), "was removed")
	}
	if old.Nullable && !s.Nullable {
		c.breaks(path.Child("nullable"), "null is no longer a value")
	}
	if keeps(old) && old.AdditionalProperties == nil && !keeps(s) {
		c.breaks(path.Child("x-kubernetes-preserve-unknown-fields"), "unknown fields are no longer kept")
	}
	if a, b := listType(old), listType(s); a != b {
		c.breaks(path.Child("x-kubernetes-list-type"), "changed from %s to %s: server-side apply merges the list in another way", a, b)
	} else if b == "map" && !slices.Equal(old.XListMapKeys, s.XListMapKeys) {
		c.breaks(path.Child("x-kubernetes-list-map-keys"), "changed from %s to %s", strings.Join(old.XListMapKeys, ","),
			strings.Join(s.XListMapKeys, ","))
	}
	if a, b := mapType(old), mapType(s); a != b {
		c.breaks(path.Child("x-kubernetes-map-type"), "changed from %s to %s", a, b)
	}
	if !apiequality.Semantic.DeepEqual(old.Default, s.Default) {
		switch {
		case old.Default == nil:
			c.out = append(c.out, Finding{Note, path.Child("default").String(), fmt.Sprintf("is new: %s", s.Default.Raw)})
		case s.Default == nil:
			c.breaks(path.Child("default"), "was removed")
		default:
			c.breaks(path.Child("default"), "changed from %s to %s", old.Default.Raw, s.Default.Raw)
		}
	}
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func listType(s *v1.JSONSchemaProps) string {
	if s.Type != "array" || s.XListType == nil {
		return "atomic"
	}
	return *s.XListType
}

func mapType(s *v1.JSONSchemaProps) string {
	if s.XMapType == nil {
		return "granular"
	}
	return *s.XMapType
}

// values compares the values that two nodes allow.
func (c *comparison) values(path *field.Path, old, s *v1.JSONSchemaProps) {
	if len(s.Enum) > 0 {
		if len(old.Enum) == 0 {
			c.breaks(path.Child("enum"), "is new: other values were good before")
		}
		for _, e := range old.Enum {
			if !slices.ContainsFunc(s.Enum, func(x v1.JSON) bool { return string(x.Raw) == string(e.Raw) }) {
				c.breaks(path.Child("enum"), "%s is no longer a value", e.Raw)
			}
		}
	}
	for _, b := range []struct {
		name     string
		old, now *int64
		least    bool
	}{
		{"minLength", old.MinLength, s.MinLength, true}, {"maxLength", old.MaxLength, s.MaxLength, false},
		{"minItems", old.MinItems, s.MinItems, true}, {"maxItems", old.MaxItems, s.MaxItems, false},
		{"minProperties", old.MinProperties, s.MinProperties, true}, {"maxProperties", old.MaxProperties, s.MaxProperties, false},
	} {
		tighter(c, path.Child(b.name), b.old, b.now, b.least)
	}
	tighter(c, path.Child("minimum"), old.Minimum, s.Minimum, true)
	tighter(c, path.Child("maximum"), old.Maximum, s.Maximum, false)
	for _, p := range []struct{ name, old, now string }{{"pattern", old.Pattern, s.Pattern}, {"format", old.Format, s.Format}} {
		if p.now != "" && p.old != p.now {
			c.breaks(path.Child(p.name), "changed from %s to %s", orNone(p.old), p.now)
		}
	}
	if s.ExclusiveMinimum && !old.ExclusiveMinimum && old.Minimum != nil {
		c.breaks(path.Child("exclusiveMinimum"), "%v is no longer a value", *old.Minimum)
	}
	if s.ExclusiveMaximum && !old.ExclusiveMaximum && old.Maximum != nil {
		c.breaks(path.Child("exclusiveMaximum"), "%v is no longer a value", *old.Maximum)
	}
	for i, r := range s.XValidations {
		if !slices.ContainsFunc(old.XValidations, func(o v1.ValidationRule) bool { return o.Rule == r.Rule }) {
			c.breaks(path.Child("x-kubernetes-validations").Index(i), "is a new rule: %s", r.Rule)
		}
	}
}

// tighter reports a bound that is new or stricter than before. least is true for lower bounds.
func tighter[T int64 | float64](c *comparison, path *field.Path, old, now *T, least bool) {
	switch {
	case now == nil:
	case old == nil:
		if !(least && *now == 0) {
			c.breaks(path, "is new: %v", *now)
		}
	case least && *now > *old, !least && *now < *old:
		c.breaks(path, "changed from %v to %v", *old, *now)
	}
}
