// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ServiceCIDR describes ranges of cluster IPs, with the subresource status.
func ServiceCIDR() *resource.Descriptor {
	check := upstream.ServiceCIDR()
	return kind.Describe[*networkingv1.ServiceCIDR](resource.Descriptor{
		Group:    "networking.k8s.io",
		Resource: "servicecidrs",
		Kind:     "ServiceCIDR",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(s *networkingv1.ServiceCIDR) {
				s.Status = networkingv1.ServiceCIDRStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(s, old *networkingv1.ServiceCIDR) {
				s.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(s, old *networkingv1.ServiceCIDR) {
				s.Spec = old.Spec
				kind.KeepMeta(&s.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
