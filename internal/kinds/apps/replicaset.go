// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apps

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// ReplicaSet describes replica sets, with the subresources scale and status.
func ReplicaSet() *resource.Descriptor {
	check := upstream.ReplicaSet()
	return kind.Describe[*appsv1.ReplicaSet](resource.Descriptor{
		Group:      "apps",
		Resource:   "replicasets",
		Kind:       "ReplicaSet",
		ShortNames: []string{"rs"},
		Categories: []string{"all"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(rs *appsv1.ReplicaSet) {
				rs.Status = appsv1.ReplicaSetStatus{}
				rs.Generation = 1
				podspec.DropOffTemplate(&rs.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(rs, old *appsv1.ReplicaSet) {
				rs.Status = old.Status
				podspec.DropOffTemplate(&rs.Spec.Template, &old.Spec.Template)
				if !kind.Same(rs.Spec, old.Spec) {
					rs.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(rs, old *appsv1.ReplicaSet) []string {
				var warnings []string
				if old == nil {
					warnings = kind.LabelNameWarning(rs.Name)
				} else if rs.Generation == old.Generation {
					return nil
				}
				return append(warnings, podspec.TemplateWarnings(field.NewPath("spec", "template"), &rs.Spec.Template)...)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Scale("apps", "replicasets", func(rs *appsv1.ReplicaSet) (int32, int32, string, error) {
				selector, err := kind.Selector(rs.Spec.Selector)
				return kind.Count(rs.Spec.Replicas), rs.Status.Replicas, selector, err
			}, func(rs *appsv1.ReplicaSet) **int32 { return &rs.Spec.Replicas }),
			kind.Status(func(rs, old *appsv1.ReplicaSet) {
				rs.Spec = old.Spec
				if !upstream.Gate("DeploymentReplicaSetTerminatingReplicas") && old.Status.TerminatingReplicas == nil {
					rs.Status.TerminatingReplicas = nil
				}
			}, check.Status),
		},
	})
}
