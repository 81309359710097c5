// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// PodTemplate describes stand-alone pod templates.
func PodTemplate() *resource.Descriptor {
	check := upstream.PodTemplate()
	return kind.Describe[*corev1.PodTemplate](resource.Descriptor{
		Resource:   "podtemplates",
		Kind:       "PodTemplate",
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(t *corev1.PodTemplate) {
				t.Generation = 1
				podspec.DropOffTemplate(&t.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(t, old *corev1.PodTemplate) {
				podspec.DropOffTemplate(&t.Template, &old.Template)
				if !kind.Same(t.Template, old.Template) {
					t.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn: kind.Warn(func(t, old *corev1.PodTemplate) []string {
				if old != nil && t.Generation == old.Generation {
					return nil
				}
				return podspec.TemplateWarnings(field.NewPath("template"), &t.Template)
			}),
		},
	})
}
