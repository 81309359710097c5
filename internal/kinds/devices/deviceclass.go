// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devices describes the kinds of the group resource.k8s.io, a file each.
package devices

import (
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// DeviceClass describes device classes.
func DeviceClass() *resource.Descriptor {
	check := upstream.DeviceClass()
	return kind.Describe[*resourcev1.DeviceClass](resource.Descriptor{
		Group:    "resource.k8s.io",
		Resource: "deviceclasses",
		Kind:     "DeviceClass",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(d *resourcev1.DeviceClass) {
				d.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(d, old *resourcev1.DeviceClass) {
				if !kind.Same(d.Spec, old.Spec) {
					d.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
		},
	})
}
