// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// manage decides which pods to create or which to delete so that the right number runs. It does one or the other.
func (p *planner) manage() {
	p.out.action = actionTracking
	active := len(p.active)
	parallelism := 1
	if p.job.Spec.Parallelism != nil {
		parallelism = int(*p.job.Spec.Parallelism)
	}
	want := parallelism
	switch {
	case p.suspended():
		want = 0
	case p.job.Spec.Completions != nil:
		want = max(min(p.completions()-int(p.succeeded), parallelism), 0)
	case p.succeeded > 0:
		want = active // one success completes the job; the other pods may finish
	}
	surplus := p.active
	if !p.suspended() {
		surplus = p.surplus(max(active-want, 0))
		surplus = surplus[:min(len(surplus), burst)]
	}
	if len(surplus) > 0 || p.suspended() {
		p.out.delete, p.out.uncount, p.out.action = surplus, true, actionDeleted
		return
	}
	missing := want - active
	if p.onlyReplaceFailed() {
		missing -= int(p.terminating)
	}
	if missing <= 0 {
		return
	}
	p.out.action = actionCreated
	missing = min(missing, burst)
	p.out.reason = p.whyCreate()
	if p.indexed() && p.job.Spec.BackoffLimitPerIndex != nil {
		p.createByIndex(missing)
		return
	}
	if wait := p.out.record.wait(p.now); wait > 0 {
		p.lookAgain(max(wait, time.Second))
		return
	}
	if !p.indexed() {
		p.out.create = slices.Repeat([]creation{{index: noIndex}}, missing)
		return
	}
	for _, index := range p.pending(missing) {
		p.out.create = append(p.out.create, creation{index: index})
	}
}

// createByIndex creates pods for the indexes whose own back-off is over.
func (p *planner) createByIndex(missing int) {
	for _, index := range p.pending(missing) {
		if wait := recordOfIndex(p.delayed[index]).wait(p.now); wait > 0 {
			p.lookAgain(wait)
			continue
		}
		p.out.create = append(p.out.create, creation{index, p.delayed[index]})
	}
}

// surplus returns the pods to delete: at least n, and all but one of each index.
func (p *planner) surplus(n int) []*corev1.Pod {
	left := slices.Clone(p.active)
	var gone []*corev1.Pod
	workload.SortForDeletion(left)
	if p.indexed() {
		kept := map[int]bool{}
		var stay []*corev1.Pod
		for _, pod := range slices.Backward(left) {
			if i := completionIndex(pod); i == noIndex || i >= p.completions() || kept[i] {
				gone = append(gone, pod)
			} else {
				kept[i] = true
				stay = append(stay, pod)
			}
		}
		slices.Reverse(stay)
		left = stay
	}
	if more := n - len(gone); more > 0 {
		gone = append(gone, left[:min(more, len(left))]...)
	}
	return gone
}

// pending returns the first n indexes that are neither succeeded nor failed for good nor have a pod.
func (p *planner) pending(n int) []int {
	taken := p.done.with(p.lost, p.indexesOfPods(p.active))
	if p.onlyReplaceFailed() {
		taken = taken.with(p.indexesOfPods(workload.Filter(p.pods, workload.Terminating)))
	}
	return taken.lacking(n, p.completions())
}

// whyCreate returns the reason label under which metrics count creations.
func (p *planner) whyCreate() string {
	switch {
	case p.failed > 0 && p.onlyReplaceFailed():
		return "recreate_failed"
	case p.failed > 0 || p.terminating > 0:
		return "recreate_terminating_or_failed"
	}
	return "new"
}
