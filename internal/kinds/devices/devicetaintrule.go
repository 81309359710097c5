// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// DeviceTaintRule describes device taint rules, with the subresource status.
func DeviceTaintRule() *resource.Descriptor {
	check := upstream.DeviceTaintRule()
	return kind.StoredAs("v1beta2", kind.Describe[*resourcev1.DeviceTaintRule](resource.Descriptor{
		Group:    "resource.k8s.io",
		Resource: "devicetaintrules",
		Kind:     "DeviceTaintRule",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(d *resourcev1.DeviceTaintRule) {
				d.Status = resourcev1.DeviceTaintRuleStatus{}
				d.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(d, old *resourcev1.DeviceTaintRule) {
				d.Status = old.Status
				if d.Spec.Taint.Effect != old.Spec.Taint.Effect && d.Spec.Taint.TimeAdded.Equal(old.Spec.Taint.TimeAdded) {
					d.Spec.Taint.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
				}
				if !kind.Same(d.Spec, old.Spec) {
					d.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Conditional:    true,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(d, old *resourcev1.DeviceTaintRule) {
				d.Spec = old.Spec
				kind.KeepMeta(&d.ObjectMeta, &old.ObjectMeta)
			}, check.Status),
		},
	}))
}
