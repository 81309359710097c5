// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// ComponentStatus describes what was once how a cluster's other processes were seen. Here there are none: the list is
// empty, and nobody can write to it.
func ComponentStatus() *resource.Descriptor {
	d := kind.Describe[corev1.ComponentStatus](resource.Descriptor{
		Resource:   "componentstatuses",
		Kind:       "ComponentStatus",
		ShortNames: []string{"cs"},
		Verbs:      []string{"get", "list"},
	})
	d.Versions[0].Deprecation = "v1 ComponentStatus is deprecated in v1.19+"
	return d
}
