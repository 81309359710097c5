// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package storagemigration describes the one kind of the group storagemigration.k8s.io.
package storagemigration

import (
	storagemigrationv1 "k8s.io/api/storagemigration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// StorageVersionMigration describes storage version migrations, with the subresource status.
func StorageVersionMigration() *resource.Descriptor {
	check := upstream.StorageVersionMigration()
	return kind.StoredAs("v1beta1", kind.Describe[*storagemigrationv1.StorageVersionMigration](resource.Descriptor{
		Group:    "storagemigration.k8s.io",
		Resource: "storageversionmigrations",
		Kind:     "StorageVersionMigration",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(s *storagemigrationv1.StorageVersionMigration) {
				s.Status = storagemigrationv1.StorageVersionMigrationStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(s, old *storagemigrationv1.StorageVersionMigration) {
				s.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(s, old *storagemigrationv1.StorageVersionMigration) {
				s.Spec = old.Spec
				kind.KeepMeta(&s.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	}))
}
