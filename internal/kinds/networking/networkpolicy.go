// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package networking

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// NetworkPolicy describes network policies.
func NetworkPolicy() *resource.Descriptor {
	check := upstream.NetworkPolicy()
	return kind.Describe[*networkingv1.NetworkPolicy](resource.Descriptor{
		Group:      "networking.k8s.io",
		Resource:   "networkpolicies",
		Kind:       "NetworkPolicy",
		ShortNames: []string{"netpol"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(n *networkingv1.NetworkPolicy) {
				n.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(n, old *networkingv1.NetworkPolicy) {
				if !kind.Same(n.Spec, old.Spec) {
					n.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn:           kind.Warn(func(n, _ *networkingv1.NetworkPolicy) []string { return policyWarnings(n) }),
		},
	})
}

// policyWarnings returns warnings about malformed address ranges.
func policyWarnings(n *networkingv1.NetworkPolicy) []string {
	var out []string
	peers := func(list []networkingv1.NetworkPolicyPeer, path *field.Path) {
		for i, p := range list {
			if p.IPBlock == nil {
				continue
			}
			at := path.Index(i).Child("ipBlock")
			out = append(out, validation.GetWarningsForCIDR(at.Child("cidr"), p.IPBlock.CIDR)...)
			for j, except := range p.IPBlock.Except {
				out = append(out, validation.GetWarningsForCIDR(at.Child("except").Index(j), except)...)
			}
		}
	}
	for i, rule := range n.Spec.Ingress {
		peers(rule.From, field.NewPath("spec", "ingress").Index(i).Child("from"))
	}
	for i, rule := range n.Spec.Egress {
		peers(rule.To, field.NewPath("spec", "egress").Index(i).Child("to"))
	}
	return out
}
