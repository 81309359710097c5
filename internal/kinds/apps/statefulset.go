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

// StatefulSet describes stateful sets, with the subresources scale and status.
func StatefulSet() *resource.Descriptor {
	check := upstream.StatefulSet()
	return kind.Settle(kind.Describe[*appsv1.StatefulSet](resource.Descriptor{
		Group:      "apps",
		Resource:   "statefulsets",
		Kind:       "StatefulSet",
		ShortNames: []string{"sts"},
		Categories: []string{"all"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(s *appsv1.StatefulSet) {
				s.Status = appsv1.StatefulSetStatus{}
				s.Generation = 1
				dropMaxUnavailable(s, &appsv1.StatefulSet{})
				podspec.DropOffTemplate(&s.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(s, old *appsv1.StatefulSet) {
				s.Status = old.Status
				dropMaxUnavailable(s, old)
				podspec.DropOffTemplate(&s.Spec.Template, &old.Spec.Template)
				if !kind.Same(s.Spec, old.Spec) {
					s.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn:           kind.Warn(statefulWarnings),
		},
		Subresources: []resource.Subresource{
			kind.Scale("apps", "statefulsets", func(s *appsv1.StatefulSet) (int32, int32, string, error) {
				selector, err := kind.Selector(s.Spec.Selector)
				return kind.Count(s.Spec.Replicas), s.Status.Replicas, selector, err
			}, func(s *appsv1.StatefulSet) **int32 { return &s.Spec.Replicas }),
			kind.Status(func(s, old *appsv1.StatefulSet) { s.Spec = old.Spec }, check.Status),
		},
	}), func(s *appsv1.StatefulSet) {
		for i := range s.Spec.VolumeClaimTemplates {
			s.Spec.VolumeClaimTemplates[i].APIVersion, s.Spec.VolumeClaimTemplates[i].Kind = "v1", "PersistentVolumeClaim"
		}
	})
}

// dropMaxUnavailable drops a field whose gate may be off.
func dropMaxUnavailable(s, old *appsv1.StatefulSet) {
	was := old.Spec.UpdateStrategy.RollingUpdate
	if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && !upstream.Gate("MaxUnavailableStatefulSet") &&
		(was == nil || was.MaxUnavailable == nil) {
		u.MaxUnavailable = nil
	}
}

func statefulWarnings(s, old *appsv1.StatefulSet) []string {
	var warnings []string
	if old == nil || s.Generation != old.Generation {
		warnings = podspec.TemplateWarnings(field.NewPath("spec", "template"), &s.Spec.Template)
	}
	for i := range s.Spec.VolumeClaimTemplates {
		path := field.NewPath("spec", "volumeClaimTemplates").Index(i)
		if old != nil {
			path = path.Child("Spec")
		}
		warnings = append(warnings, podspec.ClaimWarnings(path, &s.Spec.VolumeClaimTemplates[i].Spec)...)
	}
	if l := s.Spec.RevisionHistoryLimit; l != nil && *l < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}
