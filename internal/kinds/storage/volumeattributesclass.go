// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// VolumeAttributesClass describes volume attributes classes.
func VolumeAttributesClass() *resource.Descriptor {
	check := upstream.VolumeAttributesClass()
	return kind.Describe[*storagev1.VolumeAttributesClass](resource.Descriptor{
		Group:      "storage.k8s.io",
		Resource:   "volumeattributesclasses",
		Kind:       "VolumeAttributesClass",
		ShortNames: []string{"vac"},
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
		},
	})
}
