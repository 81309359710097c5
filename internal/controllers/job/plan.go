// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Limits of one sync.
const (
	burst       = 500
	maxUncount  = 500
	backOffBase = 10 * time.Second
	backOffMost = 10 * time.Minute
)

// observed is all that a decision rests on; nothing in it is changed.
type observed struct {
	job     *batchv1.Job
	pods    []*corev1.Pod // those that the job controls
	settled bool          // the cache shows all pods that were created and deleted
	now     time.Time
}

// decision is what follows. First pods are deleted and created, then the status is written, then finalizers come off:
// a pod may go only after its outcome stands in the status.
type decision struct {
	delete  []*corev1.Pod
	create  []int // completion indexes; noIndex for jobs without
	status  batchv1.JobStatus
	release []*corev1.Pod // take the tracking finalizer off
	events  []event       // to be told once the status is written
	again   time.Duration // look again after that; 0: when something happens
}

type event struct{ level, reason, message string }

const noIndex = -1

// planner is a decision under way.
type planner struct {
	observed
	s           batchv1.JobStatus
	active      []*corev1.Pod
	terminating int32
	uncounted   map[types.UID]bool
	done        indexes // of an indexed job
	succeeded   int32   // counted or not
	failed      int32
	out         decision
}

func decide(in observed) decision {
	p := &planner{observed: in, s: *in.job.Status.DeepCopy(), uncounted: map[types.UID]bool{}}
	p.active = workload.Filter(in.pods, workload.Active)
	p.terminating = int32(len(workload.Filter(in.pods, workload.Terminating)))
	if p.s.StartTime == nil && !p.suspended() {
		p.s.StartTime = p.time()
	}
	p.settleUncounted()
	p.countNew()
	end := p.verdict()
	if end != nil {
		p.stop(end)
	} else {
		if p.settled && in.job.DeletionTimestamp == nil {
			p.manage()
			p.noteSuspension()
		}
		if p.enough() {
			end = p.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		}
	}
	p.releaseFinished(end)
	p.finish(end)
	p.out.status = p.s
	return p.out
}

func (p *planner) time() *metav1.Time {
	t := metav1.NewTime(p.now)
	return &t
}

func (p *planner) suspended() bool { return p.job.Spec.Suspend != nil && *p.job.Spec.Suspend }

func (p *planner) indexed() bool {
	return p.job.Spec.CompletionMode != nil && *p.job.Spec.CompletionMode == batchv1.IndexedCompletion
}

// onlyReplaceFailed tells whether pods that are terminating still count as running.
func (p *planner) onlyReplaceFailed() bool {
	return p.job.Spec.PodReplacementPolicy != nil && *p.job.Spec.PodReplacementPolicy == batchv1.Failed
}

func (p *planner) podFailed(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed {
		return true
	}
	return !p.onlyReplaceFailed() && pod.DeletionTimestamp != nil && pod.Status.Phase != corev1.PodSucceeded
}

func tracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// settleUncounted moves pods whose finalizer is off, or that are gone, from the list of the uncounted to the counters.
func (p *planner) settleUncounted() {
	if p.s.UncountedTerminatedPods == nil {
		p.s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	held := map[types.UID]bool{}
	for _, pod := range p.pods {
		if tracked(pod) {
			held[pod.UID] = true
		}
	}
	settle := func(uids []types.UID, counter *int32) []types.UID {
		var kept []types.UID
		for _, uid := range uids {
			if held[uid] {
				kept = append(kept, uid)
				p.uncounted[uid] = true
			} else {
				*counter++
			}
		}
		return kept
	}
	u := p.s.UncountedTerminatedPods
	u.Succeeded = settle(u.Succeeded, &p.s.Succeeded)
	u.Failed = settle(u.Failed, &p.s.Failed)
}

// countNew finds pods that have ended and are in no list, and counts all outcomes.
func (p *planner) countNew() {
	u := p.s.UncountedTerminatedPods
	p.done = parseIndexes(p.s.CompletedIndexes, p.completions())
	for _, pod := range p.pods {
		if !tracked(pod) || p.uncounted[pod.UID] || len(u.Succeeded)+len(u.Failed) >= maxUncount {
			continue
		}
		index := completionIndex(pod)
		if p.indexed() && (index == noIndex || index >= p.completions()) {
			continue
		}
		switch {
		case pod.Status.Phase == corev1.PodSucceeded && p.indexed():
			p.done[index] = true
		case pod.Status.Phase == corev1.PodSucceeded:
			u.Succeeded = append(u.Succeeded, pod.UID)
			p.uncounted[pod.UID] = true
		case p.podFailed(pod):
			u.Failed = append(u.Failed, pod.UID)
			p.uncounted[pod.UID] = true
		}
	}
	p.succeeded = p.s.Succeeded + int32(len(u.Succeeded))
	if p.indexed() {
		p.s.CompletedIndexes = p.done.String()
		p.s.Succeeded = int32(len(p.done))
		p.succeeded = p.s.Succeeded
	}
	p.failed = p.s.Failed + int32(len(u.Failed))
}

func (p *planner) completions() int {
	if p.job.Spec.Completions == nil {
		return 0
	}
	return int(*p.job.Spec.Completions)
}

func (p *planner) condition(kind batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	return &batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: *p.time(), LastTransitionTime: *p.time(), Reason: reason, Message: message}
}

func find(conditions []batchv1.JobCondition, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range conditions {
		if conditions[i].Type == kind && conditions[i].Status == corev1.ConditionTrue {
			return &conditions[i]
		}
	}
	return nil
}

// verdict says why the job must end although pods may still run; nil when it goes on.
func (p *planner) verdict() *batchv1.JobCondition {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := find(p.s.Conditions, kind); c != nil {
			return c
		}
	}
	if p.failed > p.backoffLimit() || p.restartedTooOften() {
		return p.condition(batchv1.JobFailureTarget, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	}
	if limit := p.job.Spec.ActiveDeadlineSeconds; limit != nil && p.s.StartTime != nil && !p.suspended() {
		left := p.s.StartTime.Add(time.Duration(*limit) * time.Second).Sub(p.now)
		if left <= 0 {
			return p.condition(batchv1.JobFailureTarget, batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline")
		}
		p.lookAgain(left)
	}
	return nil
}

func (p *planner) lookAgain(d time.Duration) {
	if p.out.again == 0 || d < p.out.again {
		p.out.again = d
	}
}

func (p *planner) backoffLimit() int32 {
	if p.job.Spec.BackoffLimit == nil {
		return 6
	}
	return *p.job.Spec.BackoffLimit
}

// restartedTooOften counts restarts inside of pods, for jobs whose pods restart in place.
func (p *planner) restartedTooOften() bool {
	if p.job.Spec.Template.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
		return false
	}
	var n int32
	for _, pod := range p.pods {
		if pod.Status.Phase != corev1.PodRunning && pod.Status.Phase != corev1.PodPending {
			continue
		}
		for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			n += s.RestartCount
		}
	}
	return n > 0 && n >= p.backoffLimit()
}

// stop ends what still runs. Of a job that fails, what is stopped counts as failed.
func (p *planner) stop(end *batchv1.JobCondition) {
	if !p.settled {
		return
	}
	p.out.delete = p.active
	if end.Type != batchv1.JobFailureTarget {
		return
	}
	u := p.s.UncountedTerminatedPods
	for _, pod := range p.pods {
		index := completionIndex(pod)
		if !tracked(pod) || p.uncounted[pod.UID] || pod.Status.Phase == corev1.PodSucceeded || p.indexed() && (index == noIndex || index >= p.completions()) {
			continue
		}
		u.Failed = append(u.Failed, pod.UID)
		p.uncounted[pod.UID] = true
	}
}

// enough tells whether the work is done and nothing runs any more.
func (p *planner) enough() bool {
	if len(p.active) > 0 || len(p.out.create) > 0 {
		return false
	}
	if p.job.Spec.Completions == nil {
		return p.succeeded > 0
	}
	return p.succeeded >= *p.job.Spec.Completions
}

// releaseFinished lets go of the pods whose outcome will stand in the status, and, once the job ends, of all others.
func (p *planner) releaseFinished(end *batchv1.JobCondition) {
	for _, pod := range p.pods {
		if !tracked(pod) {
			continue
		}
		index := completionIndex(pod)
		counted := p.uncounted[pod.UID] || p.indexed() && pod.Status.Phase == corev1.PodSucceeded
		invalid := p.indexed() && (index == noIndex || index >= p.completions())
		ended := workload.Finished(pod) || p.podFailed(pod)
		if counted || invalid && ended || p.job.DeletionTimestamp != nil || end != nil && (ended || slices.Contains(p.out.delete, pod)) {
			p.out.release = append(p.out.release, pod)
		}
	}
}

// finish writes the counters, and the conditions by which a job ends: first what decides it, and when nothing is left
// that runs or is uncounted, that it is over.
func (p *planner) finish(end *batchv1.JobCondition) {
	ready := int32(0)
	for _, pod := range p.active {
		if workload.Ready(pod) && !slices.Contains(p.out.delete, pod) {
			ready++
		}
	}
	if p.settled { // else the cache lacks pods that the status knows of
		p.s.Active = int32(len(p.active) - len(p.out.delete) + len(p.out.create))
	}
	p.s.Ready = &ready
	going := p.terminating + int32(len(p.out.delete))
	p.s.Terminating = &going
	if end == nil {
		return
	}
	if find(p.s.Conditions, end.Type) == nil {
		p.s.Conditions = append(p.s.Conditions, *end)
	}
	u := p.s.UncountedTerminatedPods
	if len(u.Succeeded)+len(u.Failed) > 0 || going > 0 || p.s.Active > 0 || !p.settled {
		return
	}
	last := p.condition(batchv1.JobComplete, end.Reason, end.Message)
	if end.Type == batchv1.JobFailureTarget {
		last.Type = batchv1.JobFailed
		p.out.events = append(p.out.events, event{corev1.EventTypeWarning, end.Reason, end.Message})
	} else {
		p.s.CompletionTime = p.time()
		if c := p.job.Spec.Completions; c != nil && p.s.Succeeded > *c {
			p.out.events = append(p.out.events, event{corev1.EventTypeWarning, "TooManySucceededPods", "Too many succeeded pods running after completion count reached"})
		}
		p.out.events = append(p.out.events, event{corev1.EventTypeNormal, "Completed", "Job completed"})
	}
	p.s.Conditions = append(p.s.Conditions, *last)
}

// noteSuspension keeps the Suspended condition.
func (p *planner) noteSuspension() {
	i := slices.IndexFunc(p.s.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
	is := i >= 0 && p.s.Conditions[i].Status == corev1.ConditionTrue
	switch {
	case p.suspended() && !is:
		c := *p.condition(batchv1.JobSuspended, "JobSuspended", "Job suspended")
		if i < 0 {
			p.s.Conditions = append(p.s.Conditions, c)
		} else {
			p.s.Conditions[i] = c
		}
		p.s.StartTime = nil
		p.out.events = append(p.out.events, event{corev1.EventTypeNormal, "Suspended", "Job suspended"})
	case !p.suspended() && is:
		p.s.Conditions[i] = *p.condition(batchv1.JobSuspended, "JobResumed", "Job resumed")
		p.s.Conditions[i].Status = corev1.ConditionFalse
		p.s.StartTime = p.time()
		p.out.events = append(p.out.events, event{corev1.EventTypeNormal, "Resumed", "Job resumed"})
	}
}
