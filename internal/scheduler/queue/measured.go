// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
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
	switch i.place {
	case active:
		return partActive
	case backoff, errorBackoff:
		return partBackoff
	case waiting:
		if i.gate != "" {
			return partGated
		}
		return partUnschedulable
	case nowhere:
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
