// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package coordination describes the kinds of the group coordination.k8s.io that are served by default.
package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Lease describes leases.
func Lease() *resource.Descriptor {
	check := upstream.Lease()
	return kind.Describe[*coordinationv1.Lease](resource.Descriptor{
		Group:      "coordination.k8s.io",
		Resource:   "leases",
		Kind:       "Lease",
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate:  kind.OnCreate(func(l *coordinationv1.Lease) { dropCoordinated(l, &coordinationv1.Lease{}) }),
			PrepareUpdate:  kind.OnUpdate(dropCoordinated),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
			Conditional:    true,
		},
	})
}

// dropCoordinated drops the fields of a gate that is off, unless the old lease has them.
func dropCoordinated(l, old *coordinationv1.Lease) {
	if upstream.Gate("CoordinatedLeaderElection") {
		return
	}
	if old.Spec.Strategy == nil {
		l.Spec.Strategy = nil
	}
	if old.Spec.PreferredHolder == nil {
		l.Spec.PreferredHolder = nil
	}
}
