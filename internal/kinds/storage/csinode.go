// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// CSINode describes the record of a node's storage drivers, with the subresource status.
func CSINode() *resource.Descriptor {
	check := upstream.CSINode()
	return kind.Describe[*storagev1.CSINode](resource.Descriptor{
		Group:    "storage.k8s.io",
		Resource: "csinodes",
		Kind:     "CSINode",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(c *storagev1.CSINode) {
				c.Status = storagev1.CSINodeStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(c, old *storagev1.CSINode) {
				c.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(c, old *storagev1.CSINode) {
				c.Spec = old.Spec
				kind.KeepMeta(&c.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
