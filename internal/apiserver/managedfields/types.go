// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"
	"strings"
	"sync"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoapply "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// types knows the shapes of kinds: which lists are sets or maps, which objects are atomic.
type types struct {
	builtIn     func() managedfields.TypeConverter
	definitions func() managedfields.TypeConverter
	meta        func() map[string]*spec.Schema // models of metav1, for kinds from definitions
}

func newTypes() *types {
	return &types{
		builtIn: sync.OnceValue(func() managedfields.TypeConverter { return clientgoapply.NewTypeConverter(scheme.Scheme) }),
		definitions: sync.OnceValue(func() managedfields.TypeConverter {
			s := runtime.NewScheme()
			// Registering types that are no strangers to the scheme cannot fail.
			_ = v1.AddToScheme(s)
			return apiextensionsapply.NewTypeConverter(s)
		}),
		meta: sync.OnceValue(metaModels),
	}
}

// of returns the types of a kind's versions.
func (t *types) of(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	switch {
	case custom(d):
		return t.custom(d)
	case d.Group == v1.GroupName:
		return t.definitions(), nil
	case scheme.Scheme.Recognizes(d.GroupVersionKind(d.Storage)):
		return t.builtIn(), nil
	}
	return managedfields.NewDeducedTypeConverter(), nil
}

// custom makes the types of a kind from its schema.
func (t *types) custom(d *resource.Descriptor) (managedfields.TypeConverter, error) {
	models := map[string]*spec.Schema{}
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

// metaModels are ObjectMeta and what it refers to.
func metaModels() map[string]*spec.Schema {
	const prefix = "io.k8s.apimachinery.pkg.apis.meta.v1."
	out := map[string]*spec.Schema{}
	for name, def := range openapi.GetOpenAPIDefinitions(func(path string) spec.Ref {
		return spec.MustCreateRef("#/components/schemas/" + path)
	}) {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			switch short {
			case "ObjectMeta", "OwnerReference", "ManagedFieldsEntry", "FieldsV1", "Time":
				s := def.Schema
				out[name] = &s
			}
		}
	}
	return out
}
