// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package coordination

import (
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// LeaseCandidate describes candidates for leases. It has no stable version.
func LeaseCandidate() *resource.Descriptor {
	check := upstream.LeaseCandidate()
	return kind.Describe[*coordinationv1beta1.LeaseCandidate](resource.Descriptor{
		Group:      "coordination.k8s.io",
		Resource:   "leasecandidates",
		Kind:       "LeaseCandidate",
		Namespaced: true,
		Storage:    "v1beta1",
		FieldNames: []string{"spec.leaseName"},
		Fields: kind.Fields(func(l *coordinationv1beta1.LeaseCandidate) fields.Set {
			return fields.Set{"spec.leaseName": l.Spec.LeaseName}
		}),
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
			Conditional:    true,
		},
	})
}
