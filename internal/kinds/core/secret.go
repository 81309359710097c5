// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"crypto/tls"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Secret describes secrets.
func Secret() *resource.Descriptor {
	check := upstream.Secret()
	return kind.Settle(kind.Describe[*corev1.Secret](resource.Descriptor{
		Resource:   "secrets",
		Kind:       "Secret",
		Namespaced: true,
		FieldNames: []string{"type"},
		Fields: kind.Fields(func(s *corev1.Secret) fields.Set {
			return fields.Set{"type": string(s.Type)}
		}),
		Strategy: resource.Strategy{
			PrepareUpdate: kind.OnUpdate(func(s, old *corev1.Secret) {
				if s.Type == "" {
					s.Type = old.Type
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(s, _ *corev1.Secret) []string {
				if s.Type != corev1.SecretTypeTLS {
					return nil
				}
				if _, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]); err != nil {
					return []string{err.Error()}
				}
				return nil
			}),
		},
	}), func(s *corev1.Secret) {
		// stringData is write-only, and overrides data.
		if len(s.StringData) > 0 && s.Data == nil {
			s.Data = make(map[string][]byte, len(s.StringData))
		}
		for k, v := range s.StringData {
			s.Data[k] = []byte(v)
		}
		s.StringData = nil
	})
}
