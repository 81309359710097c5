// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// CronJob describes cron jobs, with the subresource status.
func CronJob() *resource.Descriptor {
	check := upstream.CronJob()
	return kind.Describe[*batchv1.CronJob](resource.Descriptor{
		Group:      "batch",
		Resource:   "cronjobs",
		Kind:       "CronJob",
		ShortNames: []string{"cj"},
		Categories: []string{"all"},
		Namespaced: true,
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(c *batchv1.CronJob) {
				c.Status = batchv1.CronJobStatus{}
				c.Generation = 1
				dropScheduling(&c.Spec.JobTemplate.Spec, &batchv1.JobSpec{})
				podspec.DropOffTemplate(&c.Spec.JobTemplate.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(c, old *batchv1.CronJob) {
				c.Status = old.Status
				dropScheduling(&c.Spec.JobTemplate.Spec, &old.Spec.JobTemplate.Spec)
				podspec.DropOffTemplate(&c.Spec.JobTemplate.Spec.Template, &old.Spec.JobTemplate.Spec.Template)
				if !kind.Same(c.Spec, old.Spec) {
					c.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(c, old *batchv1.CronJob) []string {
				var warnings []string
				if old == nil {
					warnings = kind.LabelNameWarning(c.Name)
				} else if c.Generation == old.Generation {
					return nil
				}
				return append(warnings, jobWarnings(field.NewPath("spec", "jobTemplate", "spec"), &c.Spec.JobTemplate.Spec)...)
			}),
		},
		Subresources: []resource.Subresource{
			kind.Status(func(c, old *batchv1.CronJob) { c.Spec = old.Spec }, check.Status),
		},
	})
}
