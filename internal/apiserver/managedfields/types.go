// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// types has the schemas of kinds: which lists are sets or maps, which objects are atomic.
type types struct {
	builtIn     func() (managedfields.TypeConverter, error)
	definitions func() (managedfields.TypeConverter, error)
	services    func() (managedfields.TypeConverter, error)
	meta        func() (map[string]*openapispec.Schema, error) // schemas of metav1, for kinds from definitions
}

// libraryTypes returns the types that come with the libraries. All managers of a process share them: to read the shapes of the built-in
// kinds takes 10 ms and 3 MB, and the first write of a cluster waits for it.
var libraryTypes = sync.OnceValue(func() *types {
	return &types{
		builtIn: sync.OnceValues(builtInTypes),
		definitions: sync.OnceValues(func() (managedfields.TypeConverter, error) {
			s := runtime.NewScheme()
			// Registering types that the scheme knows cannot fail.
			_ = v1.AddToScheme(s)
			return newShaped(s, definitionShapes)
		}),
		services: sync.OnceValues(apiServices),
		meta:     sync.OnceValues(func() (map[string]*openapispec.Schema, error) { return readModels(metaPrefix) }),
	}
})

// of returns the types of a kind's versions.
func (t *types) of(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	switch {
	case d.Create != nil: // reviews: client-go has no schemas of them, and their lists are atomic
		return managedfields.NewDeducedTypeConverter(), nil
	case custom(d):
		return t.custom(d)
	case d.Group == v1.GroupName:
		return t.definitions()
	case d.Group == apiregistration:
		return t.services()
	case slices.ContainsFunc(d.Versions, func(v resource.Version) bool { return scheme.Scheme.Recognizes(d.GroupVersionKind(v.Name)) }):
		return t.builtIn()
	}
	return managedfields.NewDeducedTypeConverter(), nil
}

// custom returns the types of a kind from its OpenAPI schema.
func (t *types) custom(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	meta, err := t.meta()
	if err != nil {
		return nil, err
	}
	models := maps.Clone(meta)
	keep := false
	for _, v := range d.Versions {
		s := crd.Schema(d, v.Name)
		if s == nil {
			return managedfields.NewDeducedTypeConverter(), nil
		}
		models[crd.ModelName(d.Group, v.Name, d.Kind)] = s
		keep = keep || crd.KeepsUnknown(d, v.Name)
	}
	c, err := managedfields.NewTypeConverter(models, keep)
	if err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", d.GroupResource(), err)
	}
	return c, nil
}

const (
	metaPrefix      = "io.k8s.apimachinery.pkg.apis.meta.v1."
	apiregistration = "apiregistration.k8s.io"
	servicePrefix   = "io.k8s.kube-aggregator.pkg.apis.apiregistration.v1."
)

// apiServices returns the types of APIService, which client-go does not know.
func apiServices() (managedfields.TypeConverter, error) {
	all, err := readModels(metaPrefix, servicePrefix)
	if err != nil {
		return nil, err
	}
	if s := all[servicePrefix+"APIService"]; s != nil {
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": apiregistration, "version": "v1", "kind": "APIService"}})
	}
	c, err := managedfields.NewTypeConverter(all, false)
	if err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", apiregistration, err)
	}
	return c, nil
}

// models are the OpenAPI models of metadata, Scale and APIService, by name. Upstream has them as Go code, with the texts of all fields,
// beside some hundred others: a megabyte of the program.
//
//go:embed z_models.json
var models []byte

// readModels returns the models whose names begin with one of the prefixes.
func readModels(prefixes ...string) (map[string]*openapispec.Schema, error) {
	var all map[string]*openapispec.Schema
	if err := json.Unmarshal(models, &all); err != nil {
		return nil, fmt.Errorf("parse models: %w", err)
	}
	maps.DeleteFunc(all, func(name string, _ *openapispec.Schema) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
	return all, nil
}
