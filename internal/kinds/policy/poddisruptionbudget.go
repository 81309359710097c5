// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy describes the one stored kind of the group policy.
package policy

import (
	policyv1 "k8s.io/api/policy/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PodDisruptionBudget describes disruption budgets, with the subresource status.
func PodDisruptionBudget() *resource.Descriptor {
	check := upstream.PodDisruptionBudget()
	return kind.Describe[*policyv1.PodDisruptionBudget](resource.Descriptor{
		Group:      "policy",
		Resource:   "poddisruptionbudgets",
		Kind:       "PodDisruptionBudget",
		ShortNames: []string{"pdb"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(p *policyv1.PodDisruptionBudget) {
				p.Status = policyv1.PodDisruptionBudgetStatus{}
				p.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(p, old *policyv1.PodDisruptionBudget) {
				p.Status = old.Status
				if !kind.Same(p.Spec, old.Spec) {
					p.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(p, old *policyv1.PodDisruptionBudget) {
				p.Spec = old.Spec
			}, check.Status),
		},
	})
}
