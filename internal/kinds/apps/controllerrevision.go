// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apps

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ControllerRevision describes the revisions that controllers keep of their objects.
func ControllerRevision() *resource.Descriptor {
	check := upstream.ControllerRevision()
	return kind.Describe[*appsv1.ControllerRevision](resource.Descriptor{
		Group:      "apps",
		Resource:   "controllerrevisions",
		Kind:       "ControllerRevision",
		Namespaced: true,
		Strategy:   resource.Strategy{Validate: check.Create, ValidateUpdate: check.Update},
	})
}
