// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package apiserverinternal describes the one kind of the group internal.apiserver.k8s.io.
package apiserverinternal

import (
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// StorageVersion describes the objects in which API servers report their storage versions, with the subresource status. It has no stable
// version.
func StorageVersion() *resource.Descriptor {
	check := upstream.StorageVersion()
	return kind.Describe[*apiserverinternalv1alpha1.StorageVersion](resource.Descriptor{
		Group:    "internal.apiserver.k8s.io",
		Resource: "storageversions",
		Kind:     "StorageVersion",
		Storage:  "v1alpha1",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(s *apiserverinternalv1alpha1.StorageVersion) {
				s.Status = apiserverinternalv1alpha1.StorageVersionStatus{}
			}),
			PrepareUpdate: kind.OnUpdate(func(s, old *apiserverinternalv1alpha1.StorageVersion) {
				s.Status = old.Status
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(s, old *apiserverinternalv1alpha1.StorageVersion) {
				s.Spec = old.Spec
				kind.KeepMeta(&s.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	})
}
