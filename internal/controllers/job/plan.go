// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"cmp"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// Limits of one sync.
const (
	burst      = 500
	maxUncount = 500
)

// observed is the complete input of a decision; decide does not change it.
type observed struct {
	job      *batchv1.Job
	pods     []*corev1.Pod      // the pods that the job controls
	released map[types.UID]bool // pods whose finalizer is removed, though the cache still shows it
	stuck    map[types.UID]bool // pods that could not be deleted just now
	record   *history           // the failures; nil if there is no record of the job
	now      time.Time
}

// decision is what the controller does next. It first deletes and creates pods, then writes the status, then removes finalizers: a pod may
// go only when the status contains its outcome.
type decision struct {
	delete  []*corev1.Pod
	uncount bool // do not count deleted pods: their finalizers are removed before
	create  []creation
	status  batchv1.JobStatus
	release []*corev1.Pod // take the tracking finalizer off
	events  []event       // recorded once the status is written
	over    *batchv1.JobCondition
	again   time.Duration // requeue after that; 0: wait for an event
	record  history

	action string                                 // the action in the sync's metrics
	ruled  map[batchv1.PodFailurePolicyAction]int // failures that matched a rule of the policy
	reason string                                 // why pods are created
}

// creation is a pod to create: with or without an index, and as the replacement of a failed pod or not.
type creation struct {
	index    int
	replaces *corev1.Pod
}

type event struct{ level, reason, message string }

const noIndex = -1

// planner is a decision in progress.
type planner struct {
	observed
	s           batchv1.JobStatus
	active      []*corev1.Pod
	terminating int32
	uncounted   map[types.UID]bool
	before      indexes             // of an indexed job: those that its status lists as completed
	done        indexes             // … with those that have completed since
	lost        indexes             // … and those that failed for good
	delayed     map[int]*corev1.Pod // the last failed pod of each index that waits for the next one
	succeeded   int32               // including those that are not counted yet
	failed      int32
	full        bool // more pods are to be counted than one sync may
	out         decision
}

func decide(in observed) decision {
	p := &planner{observed: in, s: *in.job.Status.DeepCopy(), uncounted: map[types.UID]bool{}}
	p.out.action = actionReconciling
	p.active = workload.Filter(in.pods, workload.Active)
	p.terminating = int32(len(workload.Filter(in.pods, workload.Terminating)))
	p.settleUncounted()
	p.countNew()
	if p.s.StartTime == nil && !p.suspended() {
		p.s.StartTime = p.time()
	}
	end := p.verdict()
	switch {
	case end != nil:
		p.out.delete = p.active
		if len(in.stuck) > 0 {
			end = nil // not while pods still run
		}
	default:
		managed := in.job.DeletionTimestamp == nil
		if managed {
			p.manage()
		}
		if p.enough() {
			// upstream's words
			end = p.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, "Reached expected number of succeeded pods")
		} else if managed {
			p.noteSuspension()
		}
	}
	p.out.delete = slices.DeleteFunc(slices.Clone(p.out.delete), func(pod *corev1.Pod) bool { return in.stuck[pod.UID] })
	p.track(end)
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

// onlyReplaceFailed reports whether terminating pods still count as running.
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

// held reports whether the finalizer still holds the pod, as far as the controller knows.
func (p *planner) held(pod *corev1.Pod) bool { return tracked(pod) && !p.released[pod.UID] }

// index returns the pod's index; ok reports whether the pod counts: for jobs without indexes every pod does.
func (p *planner) index(pod *corev1.Pod) (index int, ok bool) {
	if !p.indexed() {
		return noIndex, true
	}
	index = completionIndex(pod)
	return index, index != noIndex && index < p.completions()
}

// settleUncounted moves pods without the finalizer, and deleted pods, from the uncounted list to the counters.
func (p *planner) settleUncounted() {
	if p.s.UncountedTerminatedPods == nil {
		p.s.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	}
	held := map[types.UID]bool{}
	for _, pod := range p.pods {
		if p.held(pod) {
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

// countNew finds finished pods that are in no list, and counts all outcomes.
func (p *planner) countNew() {
	var succeeded, failed []*corev1.Pod
	var all [2][]*corev1.Pod
	p.failed = p.s.Failed + int32(len(p.s.UncountedTerminatedPods.Failed))
	for _, pod := range p.pods {
		if _, ok := p.index(pod); !ok {
			continue
		}
		fresh := p.held(pod) && !p.uncounted[pod.UID]
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			all[0] = append(all[0], pod)
			if fresh {
				succeeded = append(succeeded, pod)
			}
		case p.podFailed(pod):
			all[1] = append(all[1], pod)
			if !fresh {
				continue
			}
			failed = append(failed, pod)
			if !rule(p.job.Spec.PodFailurePolicy, pod).ignored {
				p.failed++
			}
		}
	}
	p.succeeded = p.s.Succeeded + int32(len(p.s.UncountedTerminatedPods.Succeeded)+len(succeeded))
	if p.record != nil {
		p.out.record = p.record.after(succeeded, failed)
	} else {
		p.out.record = history{}.after(all[0], all[1]) // from the pods that still exist
	}
	if p.indexed() {
		p.countIndexes(succeeded)
	}
}

func (p *planner) countIndexes(succeeded []*corev1.Pod) {
	p.before = parseIndexes(p.s.CompletedIndexes, p.completions())
	p.done = p.before.with(p.indexesOfPods(succeeded))
	p.succeeded = int32(p.done.total())
	p.s.CompletedIndexes, p.s.Succeeded = p.done.String(), p.succeeded
	p.s.FailedIndexes = nil
	if p.job.Spec.BackoffLimitPerIndex == nil {
		return
	}
	var lost []int
	if before := p.job.Status.FailedIndexes; before != nil {
		p.lost = parseIndexes(*before, p.completions())
	}
	for _, pod := range p.pods {
		if index, ok := p.index(pod); ok && p.held(pod) && p.podFailed(pod) {
			r := rule(p.job.Spec.PodFailurePolicy, pod)
			if r.action == batchv1.PodFailurePolicyActionFailIndex || !r.ignored && failuresOf(pod) >= int(*p.job.Spec.BackoffLimitPerIndex) {
				lost = append(lost, index)
			}
		}
	}
	p.lost = p.lost.with(indexesOf(lost...))
	text := p.lost.String()
	p.s.FailedIndexes = &text
	p.delay()
}

// delay finds the failed pods that must stay until their index has its next pod: they record how often the index has failed.
func (p *planner) delay() {
	p.delayed = map[int]*corev1.Pod{}
	settled := p.done.with(p.lost, p.indexesOfPods(p.active))
	for _, pod := range p.pods {
		index, ok := p.index(pod)
		if !ok || !p.held(pod) || !p.podFailed(pod) || settled.has(index) {
			continue
		}
		last := p.delayed[index]
		if last == nil || failuresOf(last)+ignoredFailuresOf(last) <= failuresOf(pod)+ignoredFailuresOf(pod) &&
			!finished(pod).Before(finished(last)) {
			p.delayed[index] = pod
		}
	}
}

func (p *planner) indexesOfPods(pods []*corev1.Pod) indexes {
	var numbers []int
	for _, pod := range pods {
		if index := completionIndex(pod); index != noIndex {
			numbers = append(numbers, index)
		}
	}
	return indexesOf(numbers...)
}

func (p *planner) completions() int {
	if p.job.Spec.Completions == nil {
		return 0
	}
	return int(*p.job.Spec.Completions)
}

func (p *planner) condition(kind batchv1.JobConditionType, reason, message string) *batchv1.JobCondition {
	return &batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: *p.time(), LastTransitionTime: *p.time(),
		Reason: reason, Message: message}
}

func find(conditions []batchv1.JobCondition, kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range conditions {
		if conditions[i].Type == kind && conditions[i].Status == corev1.ConditionTrue {
			return &conditions[i]
		}
	}
	return nil
}

// verdict returns why the job must end although pods may still run; nil if it continues. A verdict is final.
func (p *planner) verdict() *batchv1.JobCondition {
	for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget} {
		if c := find(p.s.Conditions, kind); c != nil {
			return c
		}
	}
	fail := func(reason, message string) *batchv1.JobCondition {
		return p.condition(batchv1.JobFailureTarget, reason, message)
	}
	if p.job.Spec.PodFailurePolicy != nil {
		for _, pod := range p.pods {
			if !p.podFailed(pod) {
				continue
			}
			if message := rule(p.job.Spec.PodFailurePolicy, pod).message; message != "" {
				return fail(batchv1.JobReasonPodFailurePolicy, message)
			}
		}
	}
	if p.failed > p.backoffLimit() || p.restartedTooOften() {
		return fail(batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit") // upstream's words
	}
	if limit := p.job.Spec.ActiveDeadlineSeconds; limit != nil && p.s.StartTime != nil && !p.suspended() {
		left := p.s.StartTime.Add(time.Duration(*limit) * time.Second).Sub(p.now)
		if left <= 0 {
			return fail(batchv1.JobReasonDeadlineExceeded, "Job was active longer than specified deadline") // upstream's words
		}
		p.lookAgain(left)
	}
	if !p.indexed() {
		return nil
	}
	if lost, most := p.lost.total(), p.job.Spec.MaxFailedIndexes; most != nil && lost > int(*most) {
		// upstream's words
		return fail(batchv1.JobReasonMaxFailedIndexesExceeded, "Job has exceeded the specified maximal number of failed indexes")
	} else if lost > 0 && lost+p.done.total() >= p.completions() {
		return fail(batchv1.JobReasonFailedIndexes, "Job has failed indexes") // upstream's words
	}
	if message, ok := successful(p.job.Spec.SuccessPolicy, p.done, p.completions()); ok {
		return p.condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonSuccessPolicy, message)
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

// restartedTooOften counts the container restarts, for jobs whose pods restart in place.
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

// enough reports whether the job has succeeded often enough and no pod runs any more.
func (p *planner) enough() bool {
	if len(p.active) > 0 || len(p.out.create) > 0 {
		return false
	}
	if p.job.Spec.Completions == nil {
		return p.succeeded > 0
	}
	return p.succeeded >= *p.job.Spec.Completions
}

// track lists the pods whose outcome the status will contain, and releases them. If the job fails, its stopped pods count as failed; if it
// has succeeded, they do not count.
func (p *planner) track(end *batchv1.JobCondition) {
	u := p.s.UncountedTerminatedPods
	pods, indexed := p.pods, 0
	if p.indexed() {
		pods = slices.Clone(pods)
		slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(completionIndex(a), completionIndex(b)) })
	}
	for _, pod := range pods {
		failed := p.podFailed(pod)
		if !p.held(pod) || !p.mayGo(pod, failed, end) {
			continue
		}
		p.out.release = append(p.out.release, pod)
		index, ok := p.index(pod)
		switch {
		case !ok || p.uncounted[pod.UID]:
		case pod.Status.Phase == corev1.PodSucceeded && p.indexed():
			if !p.before.has(index) {
				indexed++
			}
		case pod.Status.Phase == corev1.PodSucceeded:
			u.Succeeded = append(u.Succeeded, pod.UID)
		case failed || end != nil && end.Type == batchv1.JobFailureTarget:
			r := rule(p.job.Spec.PodFailurePolicy, pod)
			if r.action != "" {
				if p.out.ruled == nil {
					p.out.ruled = map[batchv1.PodFailurePolicyAction]int{}
				}
				p.out.ruled[r.action]++
			}
			if !r.ignored {
				u.Failed = append(u.Failed, pod.UID)
			}
		}
		if indexed+len(u.Succeeded)+len(u.Failed) >= maxUncount {
			p.full = true // the pods' own events bring the next sync, which counts the rest
			return
		}
	}
}

// mayGo reports whether the controller needs the pod no more.
func (p *planner) mayGo(pod *corev1.Pod, failed bool, end *batchv1.JobCondition) bool {
	if p.job.DeletionTimestamp != nil || end != nil || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if !failed {
		return false
	}
	index, ok := p.index(pod)
	return !ok || p.delayed[index] != pod
}

// finish sets the counters and the conditions that end a job: first the condition that decides it, and when no pod runs or is uncounted,
// the final one.
func (p *planner) finish(end *batchv1.JobCondition) {
	gone := map[types.UID]bool{}
	for _, pod := range p.out.delete {
		gone[pod.UID] = true
	}
	ready := int32(0)
	for _, pod := range p.active {
		if podconditions.IsReady(pod) && !gone[pod.UID] {
			ready++
		}
	}
	p.s.Active = int32(len(p.active) - len(p.out.delete) + len(p.out.create))
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
	if p.full || len(u.Succeeded)+len(u.Failed) > 0 || going > 0 || p.s.Active > 0 {
		return
	}
	last := p.condition(batchv1.JobComplete, end.Reason, end.Message)
	if end.Type == batchv1.JobFailureTarget {
		last.Type = batchv1.JobFailed
		p.out.events = append(p.out.events, event{corev1.EventTypeWarning, end.Reason, end.Message})
	} else {
		p.s.CompletionTime = p.time()
		if c := p.job.Spec.Completions; c != nil && p.s.Succeeded > *c {
			p.out.events = append(p.out.events, event{corev1.EventTypeWarning, "TooManySucceededPods",
				"Too many succeeded pods running after completion count reached"})
		}
		p.out.events = append(p.out.events, event{corev1.EventTypeNormal, "Completed", "Job completed"})
	}
	p.s.Conditions = append(p.s.Conditions, *last)
	p.out.over = last
}

// noteSuspension updates the Suspended condition.
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
