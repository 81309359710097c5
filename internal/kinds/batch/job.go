// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package batch describes the kinds of the group batch, a file each.
package batch

import (
	"fmt"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// An indexed job with more indexes than these limits may exceed what its status can list.
const (
	manyCompletions = 100_000
	manyParallel    = 10_000
)

// Job describes jobs, with the subresource status. Their pods are orphaned unless a client says otherwise.
func Job() *resource.Descriptor {
	check := upstream.Job()
	return kind.Describe[*batchv1.Job](resource.Descriptor{
		Group:      "batch",
		Resource:   "jobs",
		Kind:       "Job",
		Categories: []string{"all"},
		Namespaced: true,
		FieldNames: []string{"status.successful"},
		Fields: kind.Fields(func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(j *batchv1.Job) {
				if m := j.Spec.ManualSelector; m == nil || !*m {
					selectOwnPods(j)
				}
				j.Status = batchv1.JobStatus{}
				j.Generation = 1
				dropScheduling(&j.Spec, &batchv1.JobSpec{})
				podspec.DropOffTemplate(&j.Spec.Template, nil)
			}),
			PrepareUpdate: kind.OnUpdate(func(j, old *batchv1.Job) {
				j.Status = old.Status
				dropScheduling(&j.Spec, &old.Spec)
				podspec.DropOffTemplate(&j.Spec.Template, &old.Spec.Template)
				if !kind.Same(j.Spec, old.Spec) {
					j.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn: kind.Warn(func(j, old *batchv1.Job) []string {
				var warnings []string
				if old == nil {
					warnings = kind.LabelNameWarning(j.Name)
				} else if j.Generation == old.Generation {
					return nil
				}
				return append(warnings, jobWarnings(field.NewPath("spec"), &j.Spec)...)
			}),
			WarnDelete: func(opts *metav1.DeleteOptions) []string {
				if opts == nil || opts.PropagationPolicy != nil || opts.OrphanDependents != nil {
					return nil
				}
				return []string{"child pods are preserved by default when jobs are deleted; " +
					"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"}
			},
			GarbageCollection: metav1.DeletePropagationOrphan,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(j, old *batchv1.Job) { j.Spec = old.Spec }, check.Status),
		},
	})
}

// selectOwnPods adds missing labels that name the job to its pod template, and makes the job select them by its UID. Validation refuses
// conflicting values that a client set.
func selectOwnPods(j *batchv1.Job) {
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for _, label := range []struct{ key, value string }{
		{"job-name", j.Name},
		{batchv1.JobNameLabel, j.Name},
		{"controller-uid", string(j.UID)},
		{batchv1.ControllerUidLabel, string(j.UID)},
	} {
		if _, ok := j.Spec.Template.Labels[label.key]; !ok {
			j.Spec.Template.Labels[label.key] = label.value
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, ok := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !ok {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
}

// dropScheduling drops a field whose gate is off.
func dropScheduling(spec, old *batchv1.JobSpec) {
	if !upstream.Gate("WorkloadWithJob") && old.Scheduling == nil {
		spec.Scheduling = nil
	}
}

func jobWarnings(path *field.Path, spec *batchv1.JobSpec) []string {
	var warnings []string
	if m := spec.CompletionMode; m != nil && *m == batchv1.IndexedCompletion &&
		kind.Count(spec.Completions) > manyCompletions && kind.Count(spec.Parallelism) > manyParallel {
		warnings = append(warnings, fmt.Sprintf(
			"%s: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail", path))
	}
	return append(warnings, podspec.TemplateWarnings(path.Child("template"), &spec.Template)...)
}
