// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// The parts of the queue, as kube-scheduler's metrics name them.
const (
	partActive        = "active"
	partBackoff       = "backoff"
	partUnschedulable = "unschedulable"
	partGated         = "gated"
)

// The causes, besides cluster events, for which a pod enters a part of the queue.
const (
	scheduleAttemptFailure = "ScheduleAttemptFailure"
	backoffComplete        = "BackoffComplete"
	popFromBackoff         = "PopFromBackoffQ"
	forceActivate          = "ForceActivate"
	unschedulableTimeout   = "UnschedulableTimeout"
)

var (
	unscheduledPodAdd    = fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Add}.Label()
	unscheduledPodUpdate = fwk.ClusterEvent{Resource: fwk.UnscheduledPod, ActionType: fwk.Update}.Label()
)

func (i *Item) part() string {
	switch i.subqueue {
	case active:
		return partActive
	case backoff, errorBackoff:
		return partBackoff
	case waiting:
		if i.gate != "" {
			return partGated
		}
		return partUnschedulable
	case none:
	}
	return ""
}

// came records that an item has moved to another part. As in kube-scheduler, a gated one counts as unschedulable.
func (q *Queue) came(item *Item) {
	if q.options.Incoming == nil || q.cause == "" {
		return
	}
	part := item.part()
	if part == partGated {
		part = partUnschedulable
	}
	q.options.Incoming(part, q.cause)
}

// ask calls a plug-in's queueing hint about an event and a pod. Its metrics count an error as Queue, since the queue treats it so.
func (q *Queue) ask(plugin string, fn fwk.QueueingHintFn, pod *corev1.Pod, e Event) (fwk.QueueingHint, error) {
	if q.options.Hinted == nil {
		return fn(klog.Logger{}, pod, e.Old, e.New)
	}
	began := q.options.Clock.Now()
	hint, err := fn(klog.Logger{}, pod, e.Old, e.New)
	if err != nil {
		hint = fwk.Queue
	}
	q.options.Hinted(plugin, e.Label(), hint, q.options.Clock.Since(began))
	return hint, err
}

// InFlight returns the number of pods in flight, and the number of events of each kind that are kept for them.
func (q *Queue) InFlight() (pods int, events map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events = map[string]int{}
	for _, e := range q.events {
		events[e.Label()]++
	}
	return len(q.inFlight), events
}

// Pending returns the number of pods in each part of the queue.
func (q *Queue) Pending() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]int{partActive: 0, partBackoff: 0, partUnschedulable: 0, partGated: 0}
	for _, item := range q.items {
		out[item.part()]++
	}
	return out
}

// Rejected returns the number of waiting pods by the plug-in of a profile that rejected them.
func (q *Queue) Rejected() map[metrics.Rejector]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[metrics.Rejector]int{}
	for _, item := range q.items {
		for plugin := range item.UnschedulablePlugins.Union(item.PendingPlugins) {
			out[metrics.Rejector{Plugin: plugin, Profile: item.Pod.Spec.SchedulerName}]++
		}
	}
	return out
}
