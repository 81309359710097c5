// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// IngressClass describes ingress classes.
func IngressClass() *resource.Descriptor {
	check := upstream.IngressClass()
	return kind.Describe[*networkingv1.IngressClass](resource.Descriptor{
		Group:    "networking.k8s.io",
		Resource: "ingressclasses",
		Kind:     "IngressClass",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(i *networkingv1.IngressClass) {
				i.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(i, old *networkingv1.IngressClass) {
				if !kind.Same(i.Spec, old.Spec) {
					i.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
	})
}
