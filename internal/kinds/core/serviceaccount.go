// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// mountableSecrets is the annotation that limited which secrets an account's pods may mount.
const mountableSecrets = "kubernetes.io/enforce-mountable-secrets"

// ServiceAccount describes service accounts, with the subresource token.
func ServiceAccount() *resource.Descriptor {
	check := upstream.ServiceAccount()
	return kind.Describe[*corev1.ServiceAccount](resource.Descriptor{
		Resource:   "serviceaccounts",
		Kind:       "ServiceAccount",
		ShortNames: []string{"sa"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate:  kind.OnCreate(namesOnly),
			PrepareUpdate:  kind.OnUpdate(func(a, _ *corev1.ServiceAccount) { namesOnly(a) }),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(a, old *corev1.ServiceAccount) []string {
				if old != nil {
					if _, had := old.Annotations[mountableSecrets]; had {
						return nil
					}
				}
				if _, has := a.Annotations[mountableSecrets]; has {
					return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", mountableSecrets)}
				}
				return nil
			}),
		},
		Subresources: []resource.Subresource{accountToken()},
	})
}

// namesOnly keeps only the names in an account's references to secrets.
func namesOnly(a *corev1.ServiceAccount) {
	for i := range a.Secrets {
		a.Secrets[i] = corev1.ObjectReference{Name: a.Secrets[i].Name}
	}
}
