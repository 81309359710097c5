// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// MutatingAdmissionPolicyBinding describes bindings of mutating policies.
func MutatingAdmissionPolicyBinding() *resource.Descriptor {
	check := upstream.MutatingAdmissionPolicyBinding()
	return kind.Describe[*admissionregistrationv1.MutatingAdmissionPolicyBinding](resource.Descriptor{
		Group:      "admissionregistration.k8s.io",
		Resource:   "mutatingadmissionpolicybindings",
		Kind:       "MutatingAdmissionPolicyBinding",
		Categories: []string{"api-extensions"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(m *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
				m.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(m, old *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
				if !kind.Same(m.Spec, old.Spec) {
					m.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(m, old *admissionregistrationv1.MutatingAdmissionPolicyBinding) []string {
				return upstream.StaticNameWarnings(m.Name, old != nil)
			}),
			Conditional: true,
		},
	})
}
