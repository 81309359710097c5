// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// manage decides which pods to make and which to give up so that the right number runs.
func (p *planner) manage() {
	if p.suspended() {
		p.out.delete = p.active
		return
	}
	active := len(p.active)
	parallelism := 1
	if p.job.Spec.Parallelism != nil {
		parallelism = int(*p.job.Spec.Parallelism)
	}
	want := parallelism
	if p.job.Spec.Completions != nil {
		want = max(min(p.completions()-int(p.succeeded), parallelism), 0)
	} else if p.succeeded > 0 {
		want = active // one success is the whole; the others may finish
	}
	if surplus := p.surplus(max(active-want, 0)); len(surplus) > 0 {
		p.out.delete = surplus[:min(len(surplus), burst)]
		return
	}
	missing := want - active
	if p.onlyReplaceFailed() {
		missing -= int(p.terminating)
	}
	if missing <= 0 {
		return
	}
	if wait := p.backOff(); wait > 0 {
		p.lookAgain(wait)
		return
	}
	missing = min(missing, burst)
	if p.indexed() {
		p.out.create = p.pending(missing)
		return
	}
	p.out.create = slices.Repeat([]int{noIndex}, missing)
}

// surplus are the pods to give up: at least n, and all but one of each index.
func (p *planner) surplus(n int) []*corev1.Pod {
	left := slices.Clone(p.active)
	var gone []*corev1.Pod
	workload.SortForDeletion(left)
	if p.indexed() {
		kept := map[int]bool{}
		for _, pod := range slices.Backward(left) {
			if i := completionIndex(pod); i == noIndex || i >= p.completions() || kept[i] {
				gone = append(gone, pod)
			} else {
				kept[i] = true
			}
		}
		left = slices.DeleteFunc(left, func(pod *corev1.Pod) bool { return slices.Contains(gone, pod) })
	}
	if more := n - len(gone); more > 0 {
		gone = append(gone, left[:min(more, len(left))]...)
	}
	return gone
}

// pending are the first n indexes that are neither done nor being worked on.
func (p *planner) pending(n int) []int {
	taken := maps.Clone(p.done)
	if taken == nil {
		taken = indexes{}
	}
	for _, pod := range p.pods {
		if workload.Active(pod) || p.onlyReplaceFailed() && workload.Terminating(pod) {
			if i := completionIndex(pod); i != noIndex {
				taken[i] = true
			}
		}
	}
	var free []int
	for i := 0; i < p.completions() && len(free) < n; i++ {
		if !taken[i] {
			free = append(free, i)
		}
	}
	return free
}

// backOff is how long to wait before the next pod is made: ten seconds after a failure, doubling with each further one
// since the last success, up to ten minutes.
func (p *planner) backOff() time.Duration {
	var success, last time.Time
	for _, pod := range p.pods {
		if pod.Status.Phase == corev1.PodSucceeded {
			if t := finished(pod); t.After(success) {
				success = t
			}
		}
	}
	failures := 0
	for _, pod := range p.pods {
		if p.podFailed(pod) {
			if t := finished(pod); t.After(success) {
				failures++
				if t.After(last) {
					last = t
				}
			}
		}
	}
	if failures == 0 {
		return 0
	}
	wait := backOffMost
	if failures < 8 {
		wait = min(backOffBase<<(failures-1), backOffMost)
	}
	return last.Add(wait).Sub(p.now)
}

// finished is when a pod ended: its last container, or when it stopped being ready, or when it was deleted.
func finished(pod *corev1.Pod) time.Time {
	var last time.Time
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			last = time.Time{}
			break
		}
		if t := s.State.Terminated.FinishedAt.Time; t.After(last) {
			last = t
		}
	}
	if !last.IsZero() {
		return last
	}
	if c := workload.Condition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if pod.DeletionTimestamp != nil {
		var grace int64
		if pod.DeletionGracePeriodSeconds != nil {
			grace = *pod.DeletionGracePeriodSeconds
		}
		return pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return pod.CreationTimestamp.Time
}
