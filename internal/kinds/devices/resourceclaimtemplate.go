// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ResourceClaimTemplate describes templates of resource claims.
func ResourceClaimTemplate(find Namespaces) *resource.Descriptor {
	check := upstream.ResourceClaimTemplate()
	return kind.Describe[*resourcev1.ResourceClaimTemplate](resource.Descriptor{
		Group:      "resource.k8s.io",
		Resource:   "resourceclaimtemplates",
		Kind:       "ResourceClaimTemplate",
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(r *resourcev1.ResourceClaimTemplate) {
				dropDerived(&r.Spec.Spec, &resourcev1.ResourceClaimSpec{})
			}),
			PrepareUpdate: kind.OnUpdate(func(r, old *resourcev1.ResourceClaimTemplate) {
				dropDerived(&r.Spec.Spec, &old.Spec.Spec)
			}),
			Validate: find.newClaim(check.Create, func(obj resource.Object) *resourcev1.ResourceClaimSpec {
				return &obj.(*resourcev1.ResourceClaimTemplate).Spec.Spec
			}),
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
		},
	})
}
