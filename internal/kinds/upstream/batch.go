// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/utils/ptr"
)

// workloadOption is the option of the declarative validation of both batch kinds.
func workloadOption() declared {
	return options(map[string]bool{"WorkloadWithJob": Gate("WorkloadWithJob")})
}

// Job validates jobs.
func Job() Checks {
	d := workloadOption()
	return Checks{
		Create: created(func(j *batch.Job) field.ErrorList { return validation.ValidateJobCreate(j, jobOptions(nil)) }, d),
		Update: updatedBy(func(j, old *batch.Job) field.ErrorList {
			return validation.ValidateJobUpdate(j, old, jobOptions(old))
		}, d),
		Status: updatedBy(func(j, old *batch.Job) field.ErrorList {
			return validation.ValidateJobUpdateStatus(j, old, jobStatusOptions(j, old))
		}, d, "status"),
	}
}

// CronJob validates cron jobs.
func CronJob() Checks {
	d := workloadOption()
	update := func(c, old *batch.CronJob) field.ErrorList {
		return validation.ValidateCronJobUpdate(c, old, podOptions(&old.Spec.JobTemplate.Spec.Template.Spec))
	}
	return Checks{
		Create: created(func(c *batch.CronJob) field.ErrorList { return validation.ValidateCronJobCreate(c, podOptions(nil)) }, d),
		Update: updatedBy(update, d),
		Status: updatedBy(noneUpdated[*batch.CronJob], d, "status"),
	}
}

// jobOptions returns what a job's validation allows; old is nil on create.
func jobOptions(old *batch.Job) validation.JobValidationOptions {
	if old == nil {
		return validation.JobValidationOptions{PodValidationOptions: podOptions(nil), RequirePrefixedLabels: true}
	}
	o := validation.JobValidationOptions{PodValidationOptions: podOptions(&old.Spec.Template.Spec)}
	o.AllowInvalidLabelValueInSelector = o.AllowInvalidLabelValueInSelector ||
		metav1validation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector)
	suspended, unstarted := ptr.Deref(old.Spec.Suspend, false), old.Status.StartTime == nil
	o.AllowMutableSchedulingDirectives = suspended && unstarted
	mutable := suspended && (unstarted || validation.IsConditionTrue(old.Status.Conditions, batch.JobSuspended)) && old.Status.Active == 0
	if Gate("MutablePodResourcesForSuspendedJobs") {
		o.AllowMutablePodResources = mutable
	}
	if Gate("MutableSchedulingDirectivesForSuspendedJobs") {
		o.AllowMutableSchedulingDirectives = mutable
	}
	_, named := old.Spec.Template.Labels[batch.JobNameLabel]
	_, owned := old.Spec.Template.Labels[batch.ControllerUidLabel]
	o.RequirePrefixedLabels = named && owned
	return o
}

// jobStatusOptions selects the checks of a job's status for the changes that this update makes.
func jobStatusOptions(j, old *batch.Job) validation.JobStatusValidationOptions {
	now, was := &j.Status, &old.Status
	condition := func(t batch.JobConditionType) bool {
		return validation.IsConditionTrue(was.Conditions, t) != validation.IsConditionTrue(now.Conditions, t)
	}
	indexed := ptr.Deref(j.Spec.CompletionMode, batch.NonIndexedCompletion) == batch.IndexedCompletion
	finished := validation.IsJobFinished(old) != validation.IsJobFinished(j)
	complete := validation.IsJobComplete(old) != validation.IsJobComplete(j)
	failed := validation.IsJobFailed(old) != validation.IsJobFailed(j)
	completed := was.CompletedIndexes != now.CompletedIndexes
	failedIndexes := !ptr.Equal(was.FailedIndexes, now.FailedIndexes)
	active := was.Active != now.Active
	start := !ptr.Equal(was.StartTime, now.StartTime)
	completion := !ptr.Equal(was.CompletionTime, now.CompletionTime)
	uncounted := !apiequality.Semantic.DeepEqual(was.UncountedTerminatedPods, now.UncountedTerminatedPods)
	empty := ptr.Deref(j.Spec.Suspend, false) && j.Spec.Completions != nil && *j.Spec.Completions == 0
	resuming := validation.IsConditionTrue(was.Conditions, batch.JobSuspended) &&
		validation.IsConditionFalse(now.Conditions, batch.JobSuspended)
	return validation.JobStatusValidationOptions{
		RejectDecreasingSucceededCounter:             !indexed || !ptr.Equal(j.Spec.Completions, j.Spec.Parallelism),
		RejectDecreasingFailedCounter:                true,
		RejectDisablingTerminalCondition:             true,
		RejectInvalidCompletedIndexes:                completed,
		RejectInvalidFailedIndexes:                   failedIndexes,
		RejectCompletedIndexesForNonIndexedJob:       completed,
		RejectFailedIndexesForNoBackoffLimitPerIndex: failedIndexes,
		RejectFailedIndexesOverlappingCompleted:      failedIndexes || completed,
		RejectFailedJobWithoutFailureTarget:          failed || failedIndexes,
		RejectCompleteJobWithoutSuccessCriteriaMet:   complete || condition(batch.JobSuccessCriteriaMet),
		RejectFinishedJobWithActivePods:              finished || active,
		RejectFinishedJobWithoutStartTime:            (finished || start) && !empty,
		RejectFinishedJobWithUncountedTerminatedPods: finished || uncounted,
		RejectStartTimeUpdateForUnsuspendedJob:       start && !resuming,
		RejectCompletionTimeBeforeStartTime:          start || completion,
		RejectMutatingCompletionTime:                 true,
		RejectNotCompleteJobWithCompletionTime:       complete || completion,
		RejectCompleteJobWithoutCompletionTime:       complete || completion,
		RejectCompleteJobWithFailedCondition:         complete || failed,
		RejectCompleteJobWithFailureTargetCondition:  complete || condition(batch.JobFailureTarget),
		RejectMoreReadyThanActivePods:                !ptr.Equal(was.Ready, now.Ready) || active,
		RejectFinishedJobWithTerminatingPods:         finished || !ptr.Equal(was.Terminating, now.Terminating),
	}
}
