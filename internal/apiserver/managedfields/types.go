// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	openapispec "k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// types has the schemas of kinds: which lists are sets or maps, which objects are atomic.
type types struct {
	builtIn     func() (managedfields.TypeConverter, error)
	definitions func() managedfields.TypeConverter
	services    func() (managedfields.TypeConverter, error)
	meta        func() map[string]*openapispec.Schema // schemas of metav1, for kinds from definitions
}

// libraryTypes returns the types that come with the libraries. All managers of a process share them: to read the shapes of the built-in
// kinds takes 10 ms and 3 MB, and the first write of a cluster waits for it.
var libraryTypes = sync.OnceValue(func() *types {
	return &types{
		builtIn: sync.OnceValues(builtInTypes),
		definitions: sync.OnceValue(func() managedfields.TypeConverter {
			s := runtime.NewScheme()
			// Registering types that the scheme knows cannot fail.
			_ = v1.AddToScheme(s)
			return apiextensionsapply.NewTypeConverter(s)
		}),
		services: sync.OnceValues(apiServices),
		meta:     sync.OnceValue(func() map[string]*openapispec.Schema { return models(openapi.GetOpenAPIDefinitions, metaPrefix) }),
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
		return t.definitions(), nil
	case d.Group == apiregistration:
		return t.services()
	case slices.ContainsFunc(d.Versions, func(v resource.Version) bool { return scheme.Scheme.Recognizes(d.GroupVersionKind(v.Name)) }):
		return t.builtIn()
	}
	return managedfields.NewDeducedTypeConverter(), nil
}

// custom returns the types of a kind from its OpenAPI schema.
func (t *types) custom(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	models := map[string]*openapispec.Schema{}
	for name, s := range t.meta() {
		models[name] = s
	}
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
	all := models(aggregatoropenapi.GetOpenAPIDefinitions, metaPrefix, servicePrefix)
	if s := all[servicePrefix+"APIService"]; s != nil {
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": apiregistration, "version": "v1", "kind": "APIService"}})
	}
	c, err := managedfields.NewTypeConverter(all, false)
	if err != nil {
		return nil, fmt.Errorf("read schema of %s: %w", apiregistration, err)
	}
	return c, nil
}

// models returns the generated schemas whose names begin with one of the prefixes. Of metav1 it returns those that
// object metadata refers to.
func models(definitions func(common.ReferenceCallback) map[string]common.OpenAPIDefinition,
	prefixes ...string) map[string]*openapispec.Schema {
	out := map[string]*openapispec.Schema{}
	for name, def := range definitions(func(path string) openapispec.Ref {
		return openapispec.MustCreateRef("#/components/schemas/" +
			path)
	}) {
		for _, prefix := range prefixes {
			short, ok := strings.CutPrefix(name, prefix)
			if !ok {
				continue
			}
			switch short {
			case "ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "FieldsV1", "Time":
			default:
				if prefix == metaPrefix {
					continue
				}
			}
			if short == "APIServiceList" {
				continue
			}
			s := def.Schema
			out[name] = &s
		}
	}
	return out
}
