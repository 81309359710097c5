// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ValidatingAdmissionPolicy describes validating policies, with the subresource status.
func ValidatingAdmissionPolicy() *resource.Descriptor {
	check := upstream.ValidatingAdmissionPolicy()
	return kind.Describe[*admissionregistrationv1.ValidatingAdmissionPolicy](resource.Descriptor{
		Group:      "admissionregistration.k8s.io",
		Resource:   "validatingadmissionpolicies",
		Kind:       "ValidatingAdmissionPolicy",
		Categories: []string{"api-extensions"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(v *admissionregistrationv1.ValidatingAdmissionPolicy) {
				v.Status = admissionregistrationv1.ValidatingAdmissionPolicyStatus{}
				v.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) {
				v.Status = old.Status
				if !kind.Same(v.Spec, old.Spec) {
					v.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) []string {
				return upstream.StaticNameWarnings(v.Name, old != nil)
			}),
			Conditional: true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(v, old *admissionregistrationv1.ValidatingAdmissionPolicy) {
				v.Spec = old.Spec
				kind.KeepMeta(&v.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
