// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ResourcePoolStatusRequest describes requests for the free devices of a pool, with the subresource status. It has no stable version.
func ResourcePoolStatusRequest() *resource.Descriptor {
	check := upstream.ResourcePoolStatusRequest()
	drop := func(r *resourcev1alpha3.ResourcePoolStatusRequest, kept bool) {
		if !kept && !upstream.Gate("DRAPartitionableDevicesType") {
			r.Spec.DefaultPartitionTypeAttribute = nil
		}
	}
	return kind.Describe[*resourcev1alpha3.ResourcePoolStatusRequest](resource.Descriptor{
		Group:    "resource.k8s.io",
		Resource: "resourcepoolstatusrequests",
		Kind:     "ResourcePoolStatusRequest",
		Storage:  "v1alpha3",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(r *resourcev1alpha3.ResourcePoolStatusRequest) {
				r.Status = nil
				drop(r, false)
			}),
			PrepareUpdate: kind.OnUpdate(func(r, old *resourcev1alpha3.ResourcePoolStatusRequest) {
				r.Status = old.Status
				drop(r, old.Spec.DefaultPartitionTypeAttribute != nil)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
			ReturnDeleted:  true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(r, old *resourcev1alpha3.ResourcePoolStatusRequest) {
				r.Spec = old.Spec
				kind.KeepMeta(&r.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
