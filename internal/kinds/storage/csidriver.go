// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// CSIDriver describes the record of a storage driver.
func CSIDriver() *resource.Descriptor {
	check := upstream.CSIDriver()
	return kind.Describe[*storagev1.CSIDriver](resource.Descriptor{
		Group:    "storage.k8s.io",
		Resource: "csidrivers",
		Kind:     "CSIDriver",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(c *storagev1.CSIDriver) {
				if !upstream.Gate("VolumeLimitScaling") {
					c.Spec.PreventPodSchedulingIfMissing = nil
				}
			}),
			PrepareUpdate: kind.OnUpdate(func(c, old *storagev1.CSIDriver) {
				if !upstream.Gate("VolumeLimitScaling") && old.Spec.PreventPodSchedulingIfMissing == nil {
					c.Spec.PreventPodSchedulingIfMissing = nil
				}
				if !kind.Same(c.Spec, old.Spec) {
					c.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(c, old *storagev1.CSIDriver) []string {
				if !upstream.Gate("CSIServiceAccountTokenSecrets") || len(c.Spec.TokenRequests) == 0 || c.Spec.ServiceAccountTokenInSecrets != nil ||
					old != nil && kind.Same(c.Spec.TokenRequests, old.Spec.TokenRequests) {
					return nil
				}
				return []string{tokenInSecrets}
			}),
			Conditional: true,
		},
	})
}

// tokenInSecrets warns of tokens that the driver gets where they may be logged.
const tokenInSecrets = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"
