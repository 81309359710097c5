// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/resource"
)

// warnDefinition warns of formats that are not checked, and of sets that are none; of those that this write brought.
func warnDefinition(_ context.Context, obj, old resource.Object) []string {
	formats, lists, err := questionable(obj)
	if err != nil {
		return nil // validation reports it
	}
	if old != nil {
		knownFormats, knownLists, err := questionable(old)
		if err != nil {
			return nil
		}
		formats = slices.DeleteFunc(formats, func(f string) bool { return slices.Contains(knownFormats, f) })
		lists = slices.DeleteFunc(lists, func(l string) bool { return slices.Contains(knownLists, l) })
	}
	var warnings []string
	for _, f := range formats {
		warnings = append(warnings, fmt.Sprintf("unrecognized format %q", f))
	}
	for _, l := range lists {
		warnings = append(warnings, fmt.Sprintf(
			"x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", l))
	}
	return warnings
}

// questionable finds formats that validation does not know, in the order of the schemas, and the types, sorted, of set items
// that are not scalars.
func questionable(obj resource.Object) (formats, lists []string, err error) {
	d, err := internal(obj)
	if err != nil {
		return nil, nil, err
	}
	compat := environment.DefaultCompatibilityVersion()
	look := func(s *apiextensions.JSONSchemaProps) bool {
		if s.Format != "" {
			of := &spec.Schema{SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}
			formats = append(formats, validation.GetUnrecognizedFormats(of, compat)...)
		}
		if s.XListType != nil && *s.XListType == "set" && s.Items != nil && s.Items.Schema != nil {
			if t := s.Items.Schema.Type; t == "object" || t == "array" {
				lists = append(lists, t)
			}
		}
		return false
	}
	if d.Spec.Validation != nil && d.Spec.Validation.OpenAPIV3Schema != nil {
		crdvalidation.SchemaHas(d.Spec.Validation.OpenAPIV3Schema, look)
	}
	for _, v := range d.Spec.Versions {
		if v.Schema != nil && v.Schema.OpenAPIV3Schema != nil {
			crdvalidation.SchemaHas(v.Schema.OpenAPIV3Schema, look)
		}
	}
	slices.Sort(lists)
	return formats, slices.Compact(lists), nil
}
