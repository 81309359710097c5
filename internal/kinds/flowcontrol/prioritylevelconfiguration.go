// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PriorityLevelConfiguration describes priority levels, with the subresource status.
func PriorityLevelConfiguration() *resource.Descriptor {
	check := upstream.PriorityLevelConfiguration()
	return kind.Describe[*flowcontrolv1.PriorityLevelConfiguration](resource.Descriptor{
		Group:    "flowcontrol.apiserver.k8s.io",
		Resource: "prioritylevelconfigurations",
		Kind:     "PriorityLevelConfiguration",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(p *flowcontrolv1.PriorityLevelConfiguration) {
				p.Status = flowcontrolv1.PriorityLevelConfigurationStatus{}
				p.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(p, old *flowcontrolv1.PriorityLevelConfiguration) {
				p.Status = old.Status
				if !kind.Same(p.Spec, old.Spec) {
					p.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(p, old *flowcontrolv1.PriorityLevelConfiguration) {
				p.Spec = old.Spec
				managed := p.ManagedFields
				p.ObjectMeta = old.ObjectMeta
				p.ManagedFields = managed
			}, check.Status),
		},
	})
}
