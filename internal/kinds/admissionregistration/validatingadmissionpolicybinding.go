// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ValidatingAdmissionPolicyBinding describes bindings of validating policies.
func ValidatingAdmissionPolicyBinding() *resource.Descriptor {
	check := upstream.ValidatingAdmissionPolicyBinding()
	return kind.Describe[*admissionregistrationv1.ValidatingAdmissionPolicyBinding](resource.Descriptor{
		Group:      "admissionregistration.k8s.io",
		Resource:   "validatingadmissionpolicybindings",
		Kind:       "ValidatingAdmissionPolicyBinding",
		Categories: []string{"api-extensions"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(v *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
				v.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
				if !kind.Same(v.Spec, old.Spec) {
					v.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicyBinding) []string {
				return upstream.StaticNameWarnings(v.Name, old != nil)
			}),
			Conditional: true,
		},
	})
}
