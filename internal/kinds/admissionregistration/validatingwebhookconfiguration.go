// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package admissionregistration describes the kinds of the group admissionregistration.k8s.io, a file each.
package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ValidatingWebhookConfiguration describes configurations of validating webhooks.
func ValidatingWebhookConfiguration() *resource.Descriptor {
	check := upstream.ValidatingWebhookConfiguration()
	return kind.Describe[*admissionregistrationv1.ValidatingWebhookConfiguration](resource.Descriptor{
		Group:      "admissionregistration.k8s.io",
		Resource:   "validatingwebhookconfigurations",
		Kind:       "ValidatingWebhookConfiguration",
		Categories: []string{"api-extensions"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(v *admissionregistrationv1.ValidatingWebhookConfiguration) {
				v.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(v, old *admissionregistrationv1.ValidatingWebhookConfiguration) {
				if !kind.Same(v.Webhooks, old.Webhooks) {
					v.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(v, old *admissionregistrationv1.ValidatingWebhookConfiguration) []string {
				return upstream.StaticNameWarnings(v.Name, old != nil)
			}),
			Conditional: true,
		},
	})
}
