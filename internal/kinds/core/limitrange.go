// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// LimitRange describes limit ranges. The server generates a name for one without.
func LimitRange() *resource.Descriptor {
	check := upstream.LimitRange()
	return kind.Describe[*corev1.LimitRange](resource.Descriptor{
		Resource:   "limitranges",
		Kind:       "LimitRange",
		ShortNames: []string{"limits"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(l *corev1.LimitRange) {
				if l.Name == "" {
					l.Name = string(uuid.NewUUID())
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}
