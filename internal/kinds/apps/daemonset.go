// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apps

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// DaemonSet describes daemon sets, with the subresource status.
func DaemonSet() *resource.Descriptor {
	check := upstream.DaemonSet()
	d := kind.Describe[*appsv1.DaemonSet](resource.Descriptor{
		Group:      "apps",
		Resource:   "daemonsets",
		Kind:       "DaemonSet",
		ShortNames: []string{"ds"},
		Categories: []string{"all"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(ds *appsv1.DaemonSet) {
				ds.Status = appsv1.DaemonSetStatus{}
				ds.Generation = 1
				setTemplateGeneration(ds, max(templateGeneration(ds), 1))
				podspec.DropOffTemplate(&ds.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(ds, old *appsv1.DaemonSet) {
				podspec.DropOffTemplate(&ds.Spec.Template, &old.Spec.Template)
				ds.Status = old.Status
				generation := templateGeneration(old)
				setTemplateGeneration(ds, generation)
				if !kind.Same(ds.Spec.Template, old.Spec.Template) {
					ds.Generation = old.Generation + 1
					setTemplateGeneration(ds, generation+1)
				} else if !kind.Same(ds.Spec, old.Spec) {
					ds.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(ds, old *appsv1.DaemonSet) []string {
				if old != nil && templateGeneration(ds) == templateGeneration(old) {
					return nil
				}
				return podspec.TemplateWarnings(field.NewPath("spec", "template"), &ds.Spec.Template)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Status(func(ds, old *appsv1.DaemonSet) {
				ds.Spec = old.Spec
				setTemplateGeneration(ds, templateGeneration(old))
			}, check.Status),
		},
	})
	d = kind.Settle(d, func(ds *appsv1.DaemonSet) { setTemplateGeneration(ds, templateGeneration(ds)) })
	d.Hub().Coerce = func(obj resource.Object) error {
		if text, ok := obj.GetAnnotations()[appsv1.DeprecatedTemplateGeneration]; ok {
			_, err := strconv.ParseInt(text, 10, 64)
			return err
		}
		return nil
	}
	return d
}

// templateGeneration returns the number of changes of a daemon set's template. In this version it is an annotation, not a field.
func templateGeneration(ds *appsv1.DaemonSet) int64 {
	n, err := strconv.ParseInt(ds.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func setTemplateGeneration(ds *appsv1.DaemonSet, n int64) {
	if ds.Annotations == nil {
		ds.Annotations = map[string]string{}
	}
	ds.Annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
}
