// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ConfigMap describes config maps.
func ConfigMap() *resource.Descriptor {
	check := upstream.ConfigMap()
	return kind.Describe[*corev1.ConfigMap](resource.Descriptor{
		Resource:   "configmaps",
		Kind:       "ConfigMap",
		ShortNames: []string{"cm"},
		Namespaced: true,
		Strategy:   resource.Strategy{Validate: check.Create, ValidateUpdate: check.Update},
	})
}
