// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// ComponentStatus describes the deprecated status of a cluster's other components. Mortise has none: the list is empty and read-only.
func ComponentStatus() *resource.Descriptor {
	d := kind.Describe[*corev1.ComponentStatus](resource.Descriptor{
		Resource:   "componentstatuses",
		Kind:       "ComponentStatus",
		ShortNames: []string{"cs"},
		Verbs:      []string{"get", "list"},
	})
	d.Versions[0].Deprecation = "v1 ComponentStatus is deprecated in v1.19+"
	return d
}
