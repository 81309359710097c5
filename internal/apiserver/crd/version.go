// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"slices"
	"sort"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/mortise-dev/mortise/resource"
)

// version is one version of a kind.
type version struct {
	k       *kind
	name    string
	served  bool
	subs    *v1.CustomResourceSubresources
	warning string
	// keep: unknown fields of the whole object are kept (spec.preserveUnknownFields of old definitions).
	keep       bool
	shape      *shape
	columns    resource.Columns
	selectable []selectable
}

func newVersion(k *kind, of *schemas, def *v1.CustomResourceDefinition, dv *v1.CustomResourceDefinitionVersion) (*version, error) {
	v := &version{k: k, name: dv.Name, served: dv.Served, subs: dv.Subresources.DeepCopy(), keep: def.Spec.PreserveUnknownFields}
	var err error
	if v.shape, err = of.shape(dv.Schema, v.keep, v.hasStatus()); err != nil {
		return nil, err
	}
	if dv.Deprecated {
		v.warning = deprecation(def, dv)
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
	return v, nil
}

// structural is the version's schema, shared and to be read only; nil if there is none.
func (v *version) structural() *structuralschema.Structural {
	s, err := v.shape.structural.Get()
	if err != nil { // it could be made of the same bytes when the definition came
		panic(fmt.Sprintf("schema of %s %s cannot be read again: %v", v.k.name, v.name, err))
	}
	return s
}

func (v *version) validators() (*validators, error) { return v.shape.validators.Get() }

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
		Default:      v.setDefaults,
		Coerce:       v.coerce,
		Prune:        func(obj resource.Object) []string { return v.prune(obj.(*unstructured.Unstructured)) },
		PruneApplied: func(obj resource.Object) { v.pruneUnknown(obj.(*unstructured.Unstructured)) },
		Columns:      v.columns,
		FieldLabel:   v.fieldLabel,
		Unserved:     !v.served,
		Deprecation:  v.warning,
	}
	if v != v.k.hub {
		out.Deferred = true
		out.ToHub = func(obj resource.Object) (resource.Object, error) { return v.converted(obj, v.k.hub) }
		out.FromHub = func(obj resource.Object) (resource.Object, error) { return v.converted(obj, v) }
		if v.k.conversion != nil {
			out.Columns = convertedColumns{v.columns, v}
			out.Fields = v.fields
			out.Foresee = func(ctx context.Context, hubs []resource.Object) error { return v.foresee(ctx, hubs) }
		}
	}
	return out
}

// fields are those that a hub object has in the version: its webhook may have other names and values for them.
func (v *version) fields(hub resource.Object) (fields.Set, error) {
	u, err := v.k.in(context.Background(), v, hub)
	if err != nil {
		return nil, err
	}
	set := fields.Set{}
	for _, f := range v.selectable {
		set[f.name] = f.value(u.Object)
	}
	return set, nil
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
		to.pruneFields(u.Object)
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
	u, err := c.v.k.in(context.Background(), c.v, obj) // mostly cached by Foresee, so that no webhook is called
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
	if s := v.structural(); s != nil {
		defaulting.Default(obj.(*unstructured.Unstructured).Object, s)
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
	if !v.shape.embeds {
		return nil
	}
	// Coercing drops unknown fields, which prune has to report: hence the copy.
	if err, _ := objectmeta.CoerceWithOptions(nil, u.DeepCopy().Object, v.structural(), false, objectmeta.CoerceOptions{}); err != nil {
		return err
	}
	return nil
}

// prune drops unknown fields and nulls that the schema does not allow, and returns the paths of the unknown fields.
func (v *version) prune(u *unstructured.Unstructured) []string {
	unknown := v.pruneUnknown(u)
	v.pruneNulls(u.Object)
	return unknown
}

// pruneUnknown drops unknown fields and returns their paths.
func (v *version) pruneUnknown(u *unstructured.Unstructured) []string {
	var unknown []string
	if !plainMetadata(u.Object) {
		meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object,
			objectmeta.ObjectMetaOptions{DropMalformedFields: true, ReturnUnknownFieldPaths: true})
		unknown = append(unknown, paths...)
		if err == nil && found {
			// It was made from a map of JSON values, and becomes one again.
			if err := objectmeta.SetObjectMeta(u.Object, meta); err != nil {
				delete(u.Object, "metadata")
			}
		}
	}
	s := v.structural()
	if !v.keep {
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, s, true,
			structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	}
	if s != nil {
		_, paths := objectmeta.CoerceWithOptions(nil, u.Object, s, false,
			objectmeta.CoerceOptions{DropInvalidFields: true, ReturnUnknownFieldPaths: true})
		unknown = append(unknown, paths...)
	}
	return unknown
}

// pruneFields is prune for an object with valid metadata.
func (v *version) pruneFields(content map[string]any) {
	if !v.keep {
		pruning.PruneWithOptions(content, v.structural(), true, structuralschema.UnknownFieldPathOptions{})
		v.pruneNulls(content)
	}
}

// pruneNulls drops nulls of fields that are neither nullable nor have a default.
func (v *version) pruneNulls(content map[string]any) {
	if !v.keep {
		defaulting.PruneNonNullableNullsWithoutDefaults(content, v.structural())
	}
}

// plainMetadata reports whether metadata holds nothing but the fields that clients send, well formed, so that there is nothing to
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
