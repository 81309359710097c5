// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/mortise-dev/mortise/resource"
)

// kind is a compiled definition.
type kind struct {
	group, name string // name is the kind's
	namespaced  bool
	hub         *version
	versions    map[string]*version
	conversion  *conversion // nil: versions differ in apiVersion alone
	alike       bool        // all versions have the same schema, so that conversion has nothing to prune
}

// Compile makes the descriptor of a valid definition. Names are the accepted ones, those of the spec where none are accepted
// yet. Of a definition that is being deleted the descriptor refuses creation. A conversion webhook is called by call; nil:
// its versions cannot be converted.
func Compile(def *v1.CustomResourceDefinition, call Caller) (*resource.Descriptor, error) {
	return compileWith(def, call, newSchemas(0))
}

// compileWith is Compile, sharing what is made of schemas with other definitions.
func compileWith(def *v1.CustomResourceDefinition, call Caller, of *schemas) (*resource.Descriptor, error) {
	names := def.Status.AcceptedNames
	if names.Plural == "" || names.Kind == "" {
		names = def.Spec.Names
	}
	storage, err := apihelpers.GetCRDStorageVersion(def)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", def.Name, err)
	}
	k := &kind{
		group: def.Spec.Group, name: names.Kind, namespaced: def.Spec.Scope == v1.NamespaceScoped, versions: map[string]*version{},
		conversion: newConversion(def, call),
	}
	for i := range def.Spec.Versions {
		dv := &def.Spec.Versions[i]
		if !dv.Served && !dv.Storage {
			continue
		}
		v, err := newVersion(k, of, def, dv)
		if err != nil {
			return nil, fmt.Errorf("compile %s: version %s: %w", def.Name, dv.Name, err)
		}
		k.versions[dv.Name] = v
	}
	k.hub = k.versions[storage]
	k.alike = true
	for _, v := range k.versions {
		k.alike = k.alike && v.shape.sameFields(k.hub.shape)
	}

	d := &resource.Descriptor{
		Group: k.group, Resource: names.Plural, Singular: names.Singular, Kind: names.Kind, ListKind: names.ListKind,
		ShortNames: names.ShortNames, Categories: names.Categories, Namespaced: k.namespaced,
		Storage: storage, Prefix: k.group + "/" + names.Plural, Codec: codec{k},
		Verbs: []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
		Strategy: resource.Strategy{
			Undeclared:    true,
			PrepareCreate: k.prepareCreate, PrepareUpdate: k.prepareUpdate,
			Match: k.match, Validate: k.validate, ValidateUpdate: k.validateUpdate, Warn: warnFinalizers,
			GarbageCollection: metav1.DeletePropagationBackground, Conditional: true,
		},
	}
	if d.Singular == "" {
		d.Singular = strings.ToLower(d.Kind)
	}
	if d.ListKind == "" {
		d.ListKind = d.Kind + "List"
	}
	for _, name := range k.order() {
		v := k.versions[name]
		d.Versions = append(d.Versions, v.descriptor())
		for _, f := range v.selectable {
			if v.served && !slices.Contains(d.FieldNames, f.name) {
				d.FieldNames = append(d.FieldNames, f.name)
			}
		}
	}
	if d.FieldNames != nil {
		d.Fields = k.fields
	}
	k.subresources(d)
	d.Hidden = apihelpers.IsCRDConditionTrue(def, v1.NamesAccepted) && !established(def)
	if badAuthority(def) {
		d.Unusable = apierrors.NewInternalError(errors.New("error resolving resource")) // upstream's words
	}
	if terminating(def) {
		gr := d.GroupResource()
		d.Strategy.Authorize = func(_ context.Context, obj, old resource.Object) error {
			if old != nil {
				return nil
			}
			return apierrors.NewForbidden(gr, obj.GetName(), errors.New("create not allowed while custom resource definition is terminating"))
		}
	}
	if apihelpers.IsCRDConditionTrue(def, v1.Terminating) {
		d.Announced = []string{"delete", "deletecollection", "get", "list", "watch"}
	}
	return d, nil
}

func terminating(def *v1.CustomResourceDefinition) bool {
	return !def.DeletionTimestamp.IsZero() || apihelpers.IsCRDConditionTrue(def, v1.Terminating)
}

// order names the versions, the most preferred first.
func (k *kind) order() []string {
	names := make([]string, 0, len(k.versions))
	for name := range k.versions {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return apiversion.CompareKubeAwareVersionStrings(b, a) })
	return names
}

func (k *kind) gvk(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.name}
}

// of is the version that an object is in.
func (k *kind) of(obj resource.Object) *version {
	if gv := obj.GetObjectKind().GroupVersionKind(); gv.Group == k.group {
		if v := k.versions[gv.Version]; v != nil {
			return v
		}
	}
	return k.hub
}

// match returns old in the version that obj is in.
func (k *kind) match(ctx context.Context, obj, old resource.Object) (resource.Object, error) {
	return k.in(ctx, k.of(obj), old)
}

// in returns an object in a version. What it returns may share everything with obj and is only to be read.
func (k *kind) in(ctx context.Context, v *version, obj resource.Object) (*unstructured.Unstructured, error) {
	u := obj.(*unstructured.Unstructured)
	apiVersion := k.group + "/" + v.name
	if u.GetAPIVersion() == apiVersion {
		return u, nil
	}
	if k.conversion != nil {
		all, err := k.conversion.memoized(ctx, []*unstructured.Unstructured{u}, apiVersion)
		if err != nil {
			return nil, err
		}
		v.prune(all[0])
		return all[0], nil
	}
	out := &unstructured.Unstructured{Object: u.Object}
	if k.alike {
		out.Object = maps.Clone(u.Object)
	} else {
		out = u.DeepCopy()
		v.pruneFields(out.Object)
	}
	out.Object["apiVersion"] = apiVersion
	return out, nil
}

func (k *kind) fields(obj resource.Object) fields.Set {
	set := fields.Set{}
	content := obj.(*unstructured.Unstructured).Object
	for _, v := range k.versions {
		for _, f := range v.selectable {
			set[f.name] = f.value(content)
		}
	}
	return set
}

// subresources adds status and scale; where versions differ in having them, they are limited to those that do.
func (k *kind) subresources(d *resource.Descriptor) {
	verbs := []string{"get", "patch", "update"}
	var status []string
	served := 0
	type scaled struct {
		of       *v1.CustomResourceSubresourceScale
		in       *version // version of the objects that the paths refer to; nil: any
		versions []string
	}
	var scales []scaled
	for _, name := range k.order() {
		v := k.versions[name]
		if !v.served {
			continue
		}
		served++
		if v.hasStatus() {
			status = append(status, name)
		}
		if s := v.scale(); s != nil {
			var in *version
			if v != k.hub && (!k.alike || k.conversion != nil) {
				in = v
			}
			i := slices.IndexFunc(scales, func(other scaled) bool { return other.in == in && reflect.DeepEqual(other.of, s) })
			if i < 0 {
				scales = append(scales, scaled{of: s, in: in})
				i = len(scales) - 1
			}
			scales[i].versions = append(scales[i].versions, name)
		}
	}
	limit := func(versions []string) []string {
		if len(versions) == served {
			return nil
		}
		return versions
	}
	if len(status) > 0 {
		d.Subresources = append(d.Subresources, resource.Subresource{
			Name: "status", Verbs: verbs, Versions: limit(status),
			Strategy: &resource.Strategy{PrepareUpdate: k.prepareStatus, ValidateUpdate: k.validateStatus, Conditional: true},
		})
	}
	for _, s := range scales {
		d.Subresources = append(d.Subresources, resource.Subresource{
			Name: "scale", Verbs: verbs, Versions: limit(s.versions), GroupVersionKind: scaleKind, View: newScale(s.of, s.in).view(),
		})
	}
}
