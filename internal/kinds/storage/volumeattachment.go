// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// VolumeAttachment describes attachments of volumes to nodes, with the subresource status.
func VolumeAttachment() *resource.Descriptor {
	check := upstream.VolumeAttachment()
	return kind.Describe[*storagev1.VolumeAttachment](resource.Descriptor{
		Group:    "storage.k8s.io",
		Resource: "volumeattachments",
		Kind:     "VolumeAttachment",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(v *storagev1.VolumeAttachment) {
				v.Status = storagev1.VolumeAttachmentStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(v, old *storagev1.VolumeAttachment) {
				v.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(v, old *storagev1.VolumeAttachment) {
				v.Spec = old.Spec
				kind.KeepMeta(&v.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
