// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package apps describes the kinds of the group apps, a file each.
package apps

import (
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Deployment describes deployments, with the subresources scale and status.
func Deployment() *resource.Descriptor {
	check := upstream.Deployment()
	d := kind.Settle(kind.Describe[*appsv1.Deployment](resource.Descriptor{
		Group:      "apps",
		Resource:   "deployments",
		Kind:       "Deployment",
		ShortNames: []string{"deploy"},
		Categories: []string{"all"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(d *appsv1.Deployment) {
				d.Status = appsv1.DeploymentStatus{}
				d.Generation = 1
				podspec.DropOffTemplate(&d.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(d, old *appsv1.Deployment) {
				d.Status = old.Status
				podspec.DropOffTemplate(&d.Spec.Template, &old.Spec.Template)
				if !kind.Same(d.Spec, old.Spec) || !kind.Same(d.Annotations, old.Annotations) {
					d.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(d, old *appsv1.Deployment) []string {
				var warnings []string
				if old == nil {
					warnings = kind.LabelNameWarning(d.Name)
				} else if d.Generation == old.Generation {
					return nil
				}
				return append(warnings, podspec.TemplateWarnings(field.NewPath("spec", "template"), &d.Spec.Template)...)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Scale("apps", "deployments", func(d *appsv1.Deployment) (int32, int32, string, error) {
				selector, err := kind.Selector(d.Spec.Selector)
				return kind.Count(d.Spec.Replicas), d.Status.Replicas, selector, err
			}, func(d *appsv1.Deployment) **int32 { return &d.Spec.Replicas }),
			kind.Status(func(d, old *appsv1.Deployment) {
				d.Spec = old.Spec
				d.Labels = old.Labels
				if !upstream.Gate("DeploymentReplicaSetTerminatingReplicas") && old.Status.TerminatingReplicas == nil {
					d.Status.TerminatingReplicas = nil
				}
			}, check.Status),
		},
	}), func(d *appsv1.Deployment) {
		if revision, ok := d.Annotations[appsv1.DeprecatedRollbackTo]; ok {
			if n, err := strconv.ParseInt(revision, 10, 64); err == nil {
				d.Annotations[appsv1.DeprecatedRollbackTo] = strconv.FormatInt(n, 10)
			} else {
				delete(d.Annotations, appsv1.DeprecatedRollbackTo) // it is empty
			}
		}
	})
	d.Hub().Coerce = func(obj resource.Object) error {
		revision := obj.GetAnnotations()[appsv1.DeprecatedRollbackTo]
		if revision == "" {
			return nil
		}
		if _, err := strconv.ParseInt(revision, 10, 64); err != nil {
			return fmt.Errorf("failed to parse annotation[%s]=%s as int64: %w", appsv1.DeprecatedRollbackTo, revision, err) // upstream's words
		}
		return nil
	}
	return d
}
