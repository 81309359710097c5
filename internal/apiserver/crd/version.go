// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiversion "k8s.io/apimachinery/pkg/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/mortise-dev/mortise/resource"
)

// version is one version of a kind.
type version struct {
	k       *kind
	name    string
	served  bool
	subs    *v1.CustomResourceSubresources
	schema  []byte // as JSON, for the validators: decoded it takes ten times as much
	warning string
	// keep: unknown fields of the whole object are kept (spec.preserveUnknownFields of old definitions).
	keep       bool
	structural *structuralschema.Structural
	embeds     bool // there are whole objects in the schema
	columns    resource.Columns
	selectable []selectable
	// validators are made on the first write.
	validators func() (*validators, error)
}

type validators struct {
	schema, status validation.SchemaValidator
	cel            *cel.Validator // nil: no rules
}

func newVersion(k *kind, def *v1.CustomResourceDefinition, dv *v1.CustomResourceDefinitionVersion) (*version, error) {
	v := &version{k: k, name: dv.Name, served: dv.Served, subs: dv.Subresources.DeepCopy(), keep: def.Spec.PreserveUnknownFields}
	var err error
	if v.schema, err = json.Marshal(dv.Schema); err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	if dv.Deprecated {
		v.warning = deprecation(def, dv)
	}
	props, err := internalSchema(dv.Schema)
	if err != nil {
		return nil, err
	}
	if props != nil {
		s, err := structuralschema.NewStructural(props)
		if err != nil && !v.keep {
			return nil, fmt.Errorf("make structural schema: %w", err)
		}
		if !v.keep {
			s = s.DeepCopy() // it shares defaults with props
			if err := defaulting.PruneDefaults(s); err != nil {
				return nil, fmt.Errorf("prune defaults: %w", err)
			}
		}
		v.structural = s
		v.embeds = embeds(s)
	}
	if v.columns, err = newColumns(dv.AdditionalPrinterColumns); err != nil {
		return nil, err
	}
	for _, f := range dv.SelectableFields {
		s, err := newSelectable(f.JSONPath)
		if err != nil {
			return nil, err
		}
		v.selectable = append(v.selectable, s)
	}
	v.validators = sync.OnceValues(v.newValidators)
	return v, nil
}

// embeds is true of a schema with objects in it that have metadata of their own.
func embeds(s *structuralschema.Structural) bool {
	found := false
	visitor := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
		found = found || s.XEmbeddedResource
		return false
	}}
	visitor.Visit(s.DeepCopy()) // it may change what it visits
	return found
}

// internalSchema converts a version's schema to the form that apiextensions' libraries work on; nil if there is none.
func internalSchema(schema *v1.CustomResourceValidation) (*apiextensions.JSONSchemaProps, error) {
	if schema == nil || schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	var out apiextensions.CustomResourceValidation
	if err := v1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(schema, &out, nil); err != nil {
		return nil, fmt.Errorf("convert schema: %w", err)
	}
	return out.OpenAPIV3Schema, nil
}

func (v *version) newValidators() (*validators, error) {
	var schema *v1.CustomResourceValidation
	if err := json.Unmarshal(v.schema, &schema); err != nil {
		return nil, fmt.Errorf("decode schema: %w", err)
	}
	props, err := internalSchema(schema)
	if err != nil {
		return nil, err
	}
	out := &validators{}
	if out.schema, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, fmt.Errorf("make schema validator: %w", err)
	}
	if props != nil && v.hasStatus() {
		if status, ok := props.Properties["status"]; ok {
			if out.status, _, err = validation.NewSchemaValidator(&status); err != nil {
				return nil, fmt.Errorf("make status validator: %w", err)
			}
		}
	}
	if v.structural != nil {
		out.cel = cel.NewValidator(v.structural, true, celconfig.PerCallLimit)
	}
	return out, nil
}

func (v *version) hasStatus() bool {
	return v.subs != nil && v.subs.Status != nil
}

func (v *version) scale() *v1.CustomResourceSubresourceScale {
	if v.subs == nil {
		return nil
	}
	return v.subs.Scale
}

// descriptor is the version as the server sees it.
func (v *version) descriptor() resource.Version {
	gvk := v.k.gvk(v.name)
	out := resource.Version{
		Name: v.name,
		New: func() resource.Object {
			u := &unstructured.Unstructured{Object: map[string]any{}}
			u.SetGroupVersionKind(gvk)
			return u
		},
		Default:     v.setDefaults,
		Coerce:      v.coerce,
		Prune:       func(obj resource.Object) []string { return v.prune(obj.(*unstructured.Unstructured)) },
		Columns:     v.columns,
		FieldLabel:  v.fieldLabel,
		Unserved:    !v.served,
		Deprecation: v.warning,
	}
	if v != v.k.hub {
		out.Deferred = true
		out.ToHub = func(obj resource.Object) (resource.Object, error) { return v.converted(obj, v.k.hub) }
		out.FromHub = func(obj resource.Object) (resource.Object, error) { return v.converted(obj, v) }
		if v.k.conversion != nil {
			out.Columns = convertedColumns{v.columns, v}
			out.Foresee = func(ctx context.Context, hubs []resource.Object) error { return v.foresee(ctx, hubs) }
		}
	}
	return out
}

// fieldLabel refuses the labels of fields that are selectable in other versions only.
func (v *version) fieldLabel(label, value string) (string, string, error) {
	known := label == "metadata.name" || label == "metadata.namespace" && v.k.namespaced ||
		slices.ContainsFunc(v.selectable, func(f selectable) bool { return f.name == label })
	if !known {
		return "", "", fmt.Errorf("field label not supported: %s", label)
	}
	return label, value, nil
}

// converted changes obj to the version to, and drops what that does not know.
func (v *version) converted(obj resource.Object, to *version) (resource.Object, error) {
	u := obj.(*unstructured.Unstructured)
	if u.Object == nil {
		u.Object = map[string]any{}
	}
	if v.k.conversion != nil { // upstream, too, waits for a webhook whatever becomes of the request
		return v.k.in(context.Background(), to, u)
	}
	if u.GetAPIVersion() == v.k.group+"/"+to.name {
		return u, nil
	}
	u.Object["apiVersion"] = v.k.group + "/" + to.name
	if !v.k.alike {
		to.pruneFields(u.Object, structuralschema.UnknownFieldPathOptions{})
	}
	return u, nil
}

// convertedColumns reads its cells from objects in the version, which differ from hub objects in more than its name.
type convertedColumns struct {
	resource.Columns
	v *version
}

// Cells are those of the hub object's form in the version.
func (c convertedColumns) Cells(obj resource.Object) ([]any, error) {
	u, err := c.v.k.in(context.Background(), c.v, obj) // most often foreseen, so that nobody is called
	if err != nil {
		return nil, err
	}
	return c.Columns.Cells(u)
}

// foresee has hub objects converted to the version in one call, so that FromHub finds them done.
func (v *version) foresee(ctx context.Context, hubs []resource.Object) error {
	objs := make([]*unstructured.Unstructured, len(hubs))
	for i, o := range hubs {
		objs[i] = o.(*unstructured.Unstructured)
	}
	_, err := v.k.conversion.memoized(ctx, objs, v.k.group+"/"+v.name)
	return err
}

func (v *version) setDefaults(obj resource.Object) {
	if v.structural != nil {
		defaulting.Default(obj.(*unstructured.Unstructured).Object, v.structural)
	}
}

// coerce refuses metadata that is none, of the object and of objects embedded in it.
func (v *version) coerce(obj resource.Object) error {
	u := obj.(*unstructured.Unstructured)
	if !plainMetadata(u.Object) {
		if _, _, _, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{}); err != nil {
			return err
		}
	}
	if !v.embeds {
		return nil
	}
	// Coercing drops what it does not know, of which prune is to tell: hence the copy.
	if err, _ := objectmeta.CoerceWithOptions(nil, u.DeepCopy().Object, v.structural, false, objectmeta.CoerceOptions{}); err != nil {
		return err
	}
	return nil
}

// prune drops what the schema does not know, and says what that was.
func (v *version) prune(u *unstructured.Unstructured) []string {
	var unknown []string
	if !plainMetadata(u.Object) {
		meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object,
			objectmeta.ObjectMetaOptions{DropMalformedFields: true, ReturnUnknownFieldPaths: true})
		unknown = append(unknown, paths...)
		if err == nil && found {
			// It was a map of JSON values a moment ago, and is one again.
			if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
				delete(u.Object, "metadata")
			}
		}
	}
	unknown = append(unknown, v.pruneFields(u.Object, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	if v.structural != nil {
		_, paths := objectmeta.CoerceWithOptions(nil, u.Object, v.structural, false,
			objectmeta.CoerceOptions{DropInvalidFields: true, ReturnUnknownFieldPaths: true})
		unknown = append(unknown, paths...)
	}
	return unknown
}

func (v *version) pruneFields(content map[string]any, opts structuralschema.UnknownFieldPathOptions) []string {
	if v.keep {
		return nil
	}
	unknown := pruning.PruneWithOptions(content, v.structural, true, opts)
	defaulting.PruneNonNullableNullsWithoutDefaults(content, v.structural)
	return unknown
}

// plainMetadata says whether metadata holds nothing but the fields that clients send, well formed, so that there is nothing to
// refuse or drop. It is the common case, and much cheaper than the thorough way.
func plainMetadata(content map[string]any) bool {
	raw, ok := content["metadata"]
	if !ok {
		return true
	}
	m, ok := raw.(map[string]any)
	if !ok {
		return false
	}
	for key, value := range m {
		switch key {
		case "name", "generateName", "namespace", "uid", "resourceVersion":
			if s, ok := value.(string); !ok || s == "" {
				return false
			}
		case "generation":
			if n, ok := value.(int64); !ok || n == 0 {
				return false
			}
		case "labels", "annotations":
			values, ok := value.(map[string]any)
			if !ok || len(values) == 0 {
				return false
			}
			for _, x := range values {
				if _, ok := x.(string); !ok {
					return false
				}
			}
		default:
			return false
		}
	}
	return true
}

// deprecation is the warning that goes with each answer in a deprecated version.
func deprecation(def *v1.CustomResourceDefinition, dv *v1.CustomResourceDefinitionVersion) string {
	if dv.DeprecationWarning != nil {
		return *dv.DeprecationWarning
	}
	text := fmt.Sprintf("%s/%s %s is deprecated", def.Spec.Group, dv.Name, def.Spec.Names.Kind)
	var better []string
	for _, v := range def.Spec.Versions {
		if v.Served && !v.Deprecated && apiversion.CompareKubeAwareVersionStrings(dv.Name, v.Name) < 0 {
			better = append(better, v.Name)
		}
	}
	if len(better) == 0 {
		return text
	}
	sort.Slice(better, func(i, j int) bool { return apiversion.CompareKubeAwareVersionStrings(better[i], better[j]) > 0 })
	return text + fmt.Sprintf("; use %s/%s %s", def.Spec.Group, better[0], def.Spec.Names.Kind)
}
