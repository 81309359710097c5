// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admissionregistration

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// MutatingWebhookConfiguration describes configurations of mutating webhooks.
func MutatingWebhookConfiguration() *resource.Descriptor {
	check := upstream.MutatingWebhookConfiguration()
	return kind.Describe[*admissionregistrationv1.MutatingWebhookConfiguration](resource.Descriptor{
		Group:      "admissionregistration.k8s.io",
		Resource:   "mutatingwebhookconfigurations",
		Kind:       "MutatingWebhookConfiguration",
		Categories: []string{"api-extensions"},
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(m *admissionregistrationv1.MutatingWebhookConfiguration) {
				m.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(m, old *admissionregistrationv1.MutatingWebhookConfiguration) {
				if !kind.Same(m.Webhooks, old.Webhooks) {
					m.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(m, old *admissionregistrationv1.MutatingWebhookConfiguration) []string {
				return upstream.StaticNameWarnings(m.Name, old != nil)
			}),
			Conditional: true,
		},
	})
}
