// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// observed is the complete input of a decision; decide does not change it.
type observed struct {
	cron *batchv1.CronJob
	jobs []*batchv1.Job // the jobs that the CronJob controls
	late []*batchv1.Job // active jobs that the cache does not show yet
	now  time.Time
}

// decision is what the controller does next, in this order.
type decision struct {
	delete []*batchv1.Job
	create *batchv1.Job
	status batchv1.CronJobStatus // without the new job, which is added when it exists
	events []event
	again  time.Duration
}

type event struct{ level, reason, message string }

func (d *decision) tell(level, reason, format string, args ...any) {
	d.events = append(d.events, event{level, reason, fmt.Sprintf(format, args...)})
}

func ended(j *batchv1.Job) batchv1.JobConditionType {
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

func decide(in observed) decision {
	d := decision{status: *in.cron.Status.DeepCopy()}
	d.notice(in)
	d.prune(in)
	d.start(in)
	return d
}

func (d *decision) active(uid types.UID) bool {
	return slices.ContainsFunc(d.status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

func (d *decision) forget(uid types.UID) {
	d.status.Active = slices.DeleteFunc(d.status.Active, func(r corev1.ObjectReference) bool { return r.UID == uid })
}

// notice updates the list of active jobs from the jobs' status.
func (d *decision) notice(in observed) {
	there := map[types.UID]bool{}
	for _, j := range in.jobs {
		there[j.UID] = true
		end := ended(j)
		switch {
		case end == "" && !d.active(j.UID):
			// The controller crashed between the creation and the status update, or the cache shows an older status.
			if j.DeletionTimestamp == nil {
				d.tell(corev1.EventTypeWarning, "UnexpectedJob", "Saw a job that the controller did not create or forgot: %s", j.Name)
			}
		case end != "" && d.active(j.UID):
			d.forget(j.UID)
			d.tell(corev1.EventTypeNormal, "SawCompletedJob", "Saw completed job: %s, condition: %v", j.Name, end)
		}
		if done := j.Status.CompletionTime; end == batchv1.JobComplete && done != nil {
			if last := d.status.LastSuccessfulTime; last == nil || done.After(last.Time) {
				d.status.LastSuccessfulTime = done.DeepCopy()
			}
		}
	}
	for _, j := range in.late {
		there[j.UID] = true
	}
	for _, ref := range slices.Clone(d.status.Active) {
		if !there[ref.UID] {
			d.forget(ref.UID)
			d.tell(corev1.EventTypeNormal, "MissingJob", "Active job went missing: %v", ref.Name)
		}
	}
}

// prune deletes the oldest finished jobs over the history limits.
func (d *decision) prune(in observed) {
	for _, kind := range []struct {
		end   batchv1.JobConditionType
		limit *int32
	}{{batchv1.JobComplete, in.cron.Spec.SuccessfulJobsHistoryLimit}, {batchv1.JobFailed, in.cron.Spec.FailedJobsHistoryLimit}} {
		if kind.limit == nil {
			continue
		}
		var finished []*batchv1.Job
		for _, j := range in.jobs {
			if ended(j) == kind.end && j.DeletionTimestamp == nil {
				finished = append(finished, j)
			}
		}
		slices.SortFunc(finished, func(a, b *batchv1.Job) int {
			at, bt := a.Status.StartTime, b.Status.StartTime
			if at == nil || bt == nil {
				if (at == nil) != (bt == nil) {
					return map[bool]int{true: 1, false: -1}[at == nil]
				}
				return cmp.Compare(a.Name, b.Name)
			}
			return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.Name, b.Name))
		})
		if over := len(finished) - int(*kind.limit); over > 0 {
			d.delete = append(d.delete, finished[:over]...)
		}
	}
}

// start decides whether to create a job, and when to sync again.
func (d *decision) start(in observed) {
	cj := in.cron
	if cj.DeletionTimestamp != nil {
		return
	}
	zone := time.UTC
	if cj.Spec.TimeZone != nil {
		location, err := time.LoadLocation(*cj.Spec.TimeZone)
		if err != nil {
			d.tell(corev1.EventTypeWarning, "UnknownTimeZone", "invalid timeZone: %q: %s", *cj.Spec.TimeZone, err)
			return
		}
		zone = location
	}
	if cj.Spec.Suspend != nil && *cj.Spec.Suspend {
		return
	}
	if strings.Contains(cj.Spec.Schedule, "TZ") {
		d.tell(corev1.EventTypeWarning, "UnsupportedSchedule",
			"CRON_TZ or TZ used in schedule %q is not officially supported, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details", cj.Spec.Schedule)
	}
	table, err := parse(cj)
	if err != nil {
		d.tell(corev1.EventTypeWarning, "UnparseableSchedule", "unparseable schedule: %q : %s", cj.Spec.Schedule, err)
		return
	}
	d.again = table.until(cj, in.now)
	at, missed, err := table.due(cj, in.now)
	if err != nil {
		d.again = 0
		d.tell(corev1.EventTypeWarning, "InvalidSchedule", "invalid schedule: %s : %s", cj.Spec.Schedule, err)
		return
	}
	if at.IsZero() {
		return
	}
	if missed > 100 {
		d.tell(corev1.EventTypeWarning, "TooManyMissedTimes",
			"too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew")
	}
	if limit := cj.Spec.StartingDeadlineSeconds; limit != nil && at.Add(time.Duration(*limit)*time.Second).Before(in.now) {
		d.tell(corev1.EventTypeWarning, "MissSchedule", "Missed scheduled time to start a job: %s", at.UTC().Format(time.RFC1123Z))
		return
	}
	name := fmt.Sprintf("%s-%d", cj.Name, at.Unix()/60)
	known := func(r corev1.ObjectReference) bool { return r.Name == name && r.Namespace == cj.Namespace }
	if slices.ContainsFunc(d.status.Active, known) || d.status.LastScheduleTime.Equal(&metav1.Time{Time: at}) {
		return
	}
	switch cj.Spec.ConcurrencyPolicy {
	case batchv1.ForbidConcurrent:
		if len(d.status.Active) > 0 {
			d.tell(corev1.EventTypeNormal, "JobAlreadyActive",
				"Not starting job because prior execution is running and concurrency policy is Forbid")
			return
		}
	case batchv1.ReplaceConcurrent:
		for _, j := range slices.Concat(in.jobs, in.late) {
			if d.active(j.UID) {
				d.delete = append(d.delete, j)
			}
		}
	}
	d.create = &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: cj.Namespace,
			Labels:            maps.Clone(cj.Spec.JobTemplate.Labels),
			Annotations:       maps.Clone(cj.Spec.JobTemplate.Annotations),
			CreationTimestamp: metav1.NewTime(at),
			OwnerReferences:   []metav1.OwnerReference{*metav1.NewControllerRef(cj, kind)},
		},
		Spec: *cj.Spec.JobTemplate.Spec.DeepCopy(),
	}
	if d.create.Annotations == nil {
		d.create.Annotations = map[string]string{}
	}
	d.create.Annotations[batchv1.CronJobScheduledTimestampAnnotation] = at.In(zone).Format(time.RFC3339)
	d.status.LastScheduleTime = &metav1.Time{Time: at}
}
