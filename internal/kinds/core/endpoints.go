// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Endpoints describes endpoints, the predecessors of EndpointSlices.
func Endpoints() *resource.Descriptor {
	check := upstream.Endpoints()
	d := kind.Describe[*corev1.Endpoints](resource.Descriptor{
		Resource:   "endpoints",
		Singular:   "endpoints",
		Kind:       "Endpoints",
		ShortNames: []string{"ep"},
		Namespaced: true,
		Prefix:     "services/endpoints",
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn:           kind.Warn(func(e, _ *corev1.Endpoints) []string { return endpointsWarnings(e) }),
			CreateOnUpdate: true,
		},
	})
	d.Versions[0].Deprecation = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
	return d
}

// endpointsWarnings returns warnings about malformed addresses, unless the writer is the controller, which copies addresses.
func endpointsWarnings(e *corev1.Endpoints) []string {
	if e.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil
	}
	var out []string
	for i, s := range e.Subsets {
		path := field.NewPath("subsets").Index(i)
		for j, a := range s.Addresses {
			out = append(out, validation.GetWarningsForIP(path.Child("addresses").Index(j).Child("ip"), a.IP)...)
		}
		for j, a := range s.NotReadyAddresses {
			out = append(out, validation.GetWarningsForIP(path.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)...)
		}
	}
	return out
}
