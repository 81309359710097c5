// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ResourceClaim describes resource claims, with the subresource status.
func ResourceClaim(find Namespaces, ask Authorize) *resource.Descriptor {
	check := upstream.ResourceClaim()
	return kind.Describe[*resourcev1.ResourceClaim](resource.Descriptor{
		Group:      "resource.k8s.io",
		Resource:   "resourceclaims",
		Kind:       "ResourceClaim",
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(r *resourcev1.ResourceClaim) {
				r.Status = resourcev1.ResourceClaimStatus{}
				dropDerived(&r.Spec, &resourcev1.ResourceClaimSpec{})
			}),
			PrepareUpdate: kind.OnUpdate(func(r, old *resourcev1.ResourceClaim) {
				r.Status = old.Status
				dropDerived(&r.Spec, &old.Spec)
			}),
			Validate: find.newClaim(check.Create, func(obj resource.Object) *resourcev1.ResourceClaimSpec {
				return &obj.(*resourcev1.ResourceClaim).Spec
			}),
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(r, old *resourcev1.ResourceClaim) {
				r.Spec = old.Spec
				kind.KeepMeta(&r.ObjectMeta, &old.ObjectMeta)
				dropSkipped(r, old, upstream.Gate("DRAOptionalNodeOperations"))
				keepAllocated(r, old)
			}, find.newStatus(ask.authorizedStatus(check.Status))),
		},
	})
}
