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

// What brings pods into a part of the queue besides what happens to the cluster.
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

// came tells that an item is in another part than before. A gated one counts as unschedulable then, as with kube-scheduler.
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

// ask has a plug-in say whether an event may help a pod. An error counts as a hint to try, as it is taken.
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

// InFlight is how many pods are being tried, and how many events of each sort are kept for them.
func (q *Queue) InFlight() (pods int, events map[string]int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events = map[string]int{}
	for _, e := range q.events {
		events[e.Label()]++
	}
	return len(q.inFlight), events
}

// Pending is how many pods are in each part of the queue.
func (q *Queue) Pending() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := map[string]int{partActive: 0, partBackoff: 0, partUnschedulable: 0, partGated: 0}
	for _, item := range q.items {
		out[item.part()]++
	}
	return out
}

// Rejected is how many pods wait that a plug-in of a profile rejected.
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
