// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// Update replaces a pod by its newest version. The change may be what it waited for.
func (q *Queue) Update(ctx context.Context, old, pod *corev1.Pod, changes []Event) {
	if q.AnyNominated() || pod.Status.NominatedNodeName != "" {
		q.UpdateNominatedPod(klog.Logger{}, old, mustInfo(pod))
	}
	q.mu.Lock()
	item := q.items[uidOf(pod)]
	if item == nil {
		if _, flying := q.inFlight[uidOf(pod)]; flying {
			// Keep the changes: they may help if the attempt rejects the pod.
			q.events = append(q.events, changes...)
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		q.Add(ctx, pod)
		return
	}
	defer q.mu.Unlock()
	was := item.subqueue
	q.cause = "" // it stays in its subqueue for now
	if len(changes) == 0 && old.Generation == pod.Generation && old.Generation != 0 {
		info := *item.PodInfo // only the status changed
		info.Pod = pod
		item.PodInfo = &info
		return
	}
	q.take(item)
	item.PodInfo = mustInfo(pod)
	if p := q.profiles[pod.Spec.SchedulerName]; p != nil {
		item.Signature = p.Signature(ctx, pod)
	}
	if was != waiting {
		q.put(item, was)
		return
	}
	worth := worthNothing
	for _, e := range changes {
		worth = max(worth, q.worth(item, e))
	}
	if worth != worthNothing {
		q.cause = unscheduledPodUpdate
	}
	q.move(ctx, item, worth)
}

func mustInfo(pod *corev1.Pod) *nodeinfo.PodInfo {
	info, _ := nodeinfo.NewPodInfo(pod)
	return info
}

// Delete removes a pod.
func (q *Queue) Delete(pod *corev1.Pod) {
	q.DeleteNominatedPodIfExists(pod)
	q.mu.Lock()
	defer q.mu.Unlock()
	if item := q.items[uidOf(pod)]; item != nil {
		q.take(item)
	}
}

// Activate makes waiting pods active, whatever they wait for, unless they are still gated. It implements the framework's PodActivator.
func (q *Queue) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		if item := q.items[uidOf(pod)]; item != nil && item.subqueue != active {
			q.cause = forceActivate
			q.enter(context.Background(), item, active) // the framework passes no context here
		}
	}
}

// release makes active the items whose time is over, and sets the timer for the next. The caller holds the lock.
func (q *Queue) release() {
	now := q.options.Clock.Now()
	q.cause = backoffComplete
	for _, o := range []*order{&q.backoff, &q.errors} {
		for o.Len() > 0 && !o.items[0].ready.After(now) {
			q.put(o.items[0], active)
		}
	}
	q.cause = unschedulableTimeout
	for q.overdue.Len() > 0 && !q.overdue.items[0].added.Add(q.options.MaxWait).After(now) {
		q.put(q.overdue.items[0], active)
	}
	q.schedule()
}

// schedule sets the timer for the next moment at which a pod becomes due by time alone. The caller holds the lock.
func (q *Queue) schedule() {
	var next time.Time
	if q.errors.Len() > 0 {
		next = q.errors.items[0].ready
	}
	if q.overdue.Len() > 0 {
		if t := q.overdue.items[0].added.Add(q.options.MaxWait); next.IsZero() || t.Before(next) {
			next = t
		}
	}
	if next.IsZero() || q.timer != nil && !next.Before(q.due) {
		return // nothing is due, or the timer fires early enough and sets itself again
	}
	if q.timer != nil {
		q.timer.Stop()
	}
	q.due = next
	q.timer = q.options.Clock.AfterFunc(next.Sub(q.options.Clock.Now()), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.timer = nil
		q.release()
	})
}

// Close stops the timer.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
}

// Counts returns the number of active, backing off, waiting and gated pods.
func (q *Queue) Counts() (active, backoff, waits, gated int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, item := range q.items {
		if item.subqueue == waiting && item.gate != "" {
			gated++
		}
	}
	return q.active.Len(), q.backoff.Len() + q.errors.Len(), q.overdue.Len(), gated
}
