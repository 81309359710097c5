// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package discovery describes the one kind of the group discovery.k8s.io.
package discovery

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// EndpointSlice describes endpoint slices.
func EndpointSlice() *resource.Descriptor {
	check := upstream.EndpointSlice()
	return kind.Describe[*discoveryv1.EndpointSlice](resource.Descriptor{
		Group:      "discovery.k8s.io",
		Resource:   "endpointslices",
		Kind:       "EndpointSlice",
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(s *discoveryv1.EndpointSlice) {
				s.Generation = 1
				dropTopology(s)
			}),
			PrepareUpdate: kind.OnUpdate(func(s, old *discoveryv1.EndpointSlice) {
				a, b := *s, *old
				a.ObjectMeta, b.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{}
				a.TypeMeta, b.TypeMeta = metav1.TypeMeta{}, metav1.TypeMeta{}
				if !kind.Same(a, b) || !kind.Same(s.Labels, old.Labels) {
					s.Generation = old.Generation + 1
				}
				if !kind.Same(s.Endpoints, old.Endpoints) {
					dropTopology(s)
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(s, old *discoveryv1.EndpointSlice) []string {
				var out []string
				if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
					out = append(out, "spec.addressType: FQDN endpoints are deprecated")
				}
				return append(out, addressWarnings(s)...)
			}),
		},
	})
}

// dropTopology drops a field that is read-only in this version.
func dropTopology(s *discoveryv1.EndpointSlice) {
	for i := range s.Endpoints {
		s.Endpoints[i].DeprecatedTopology = nil
	}
}

// addressWarnings returns warnings about malformed addresses, unless the writer is a controller, which copies addresses.
func addressWarnings(s *discoveryv1.EndpointSlice) []string {
	switch s.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return nil
	}
	var out []string
	for i, e := range s.Endpoints {
		for j, a := range e.Addresses {
			out = append(out, validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), a)...)
		}
	}
	return out
}
