// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"reflect"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/resource"
)

// BuiltIn describes a kind of this program that has a definition, in YAML, and the Go type T. The schema validates what a schema can
// express; validate checks the rest of objects that satisfy it.
func BuiltIn[T any](definition []byte, validate func(*T) field.ErrorList) (*resource.Descriptor, error) {
	def := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(definition, def); err != nil {
		return nil, fmt.Errorf("read definition of %s: %w", reflect.TypeFor[T]().Name(), err)
	}
	d, err := Compile(def, nil)
	if err != nil {
		return nil, err
	}
	checked := func(errs field.ErrorList, obj resource.Object) field.ErrorList {
		if len(errs) > 0 {
			return errs
		}
		o, err := As[T](obj)
		if err != nil {
			return field.ErrorList{field.InternalError(nil, err)}
		}
		return validate(o)
	}
	bySchema, updateBySchema := d.Strategy.Validate, d.Strategy.ValidateUpdate
	d.Strategy.Validate = func(ctx context.Context, obj resource.Object) field.ErrorList {
		return checked(bySchema(ctx, obj), obj)
	}
	d.Strategy.ValidateUpdate = func(ctx context.Context, obj, old resource.Object) field.ErrorList {
		return checked(updateBySchema(ctx, obj, old), obj)
	}
	return d, nil
}

// As converts an object of a kind with a definition to its Go type.
func As[T any](obj resource.Object) (*T, error) {
	out := new(T)
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("read %s: it is a %T", reflect.TypeFor[T]().Name(), obj)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return out, nil
}
