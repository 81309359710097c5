// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// Item is a pod in the queue, and what is remembered of its attempts. It belongs to the queue while it is in it, to the
// scheduling loop between [Queue.Pop] and [Queue.Failed] or [Queue.Done].
type Item struct {
	*nodeinfo.PodInfo
	Signature fwk.PodSignature

	// What rejected the pod in its last attempt; both empty after an error.
	UnschedulablePlugins, PendingPlugins sets.Set[string]

	added         time.Time // when it came into the queue, or back into it
	firstAttempt  *time.Time
	attempts      int
	unschedulable int // attempts that plug-ins rejected
	errors        int // attempts that failed otherwise, since the last that did not
	gate          string
	ready         time.Time // end of the backoff
	subqueue      subqueue
	index         int // in the heap of its subqueue
}

var _ fwk.QueuedEntityInfo = (*Item)(nil)

type subqueue int

const (
	none subqueue = iota
	active
	backoff      // after a rejection: may be taken early while there is nothing else to do
	errorBackoff // after an error: waits it out
	waiting      // for an event
)

// Type and the rest tell of the item, for plug-ins that sort the queue.
func (i *Item) Type() fwk.EntityKeyType                   { return fwk.PodKeyType }
func (i *Item) GetTimestamp() time.Time                   { return i.added }
func (i *Item) GetAttempts() int                          { return i.attempts }
func (i *Item) GetBackoffExpiration() time.Time           { return i.ready }
func (i *Item) GetUnschedulableCount() int                { return i.unschedulable }
func (i *Item) GetConsecutiveErrorsCount() int            { return i.errors }
func (i *Item) GetInitialAttemptTimestamp() *time.Time    { return i.firstAttempt }
func (i *Item) GetUnschedulablePlugins() sets.Set[string] { return i.UnschedulablePlugins }
func (i *Item) GetPendingPlugins() sets.Set[string]       { return i.PendingPlugins }
func (i *Item) GetGatingPlugin() string                   { return i.gate }
func (i *Item) GetGatingPluginEvents() []fwk.ClusterEvent { return nil }

// GetPriority is the pod's priority.
func (i *Item) GetPriority() int32 { return corev1helpers.PodPriority(i.Pod) }

// Event is something that happened to the cluster and may help a pod. Old and New are the object before and after; nil
// where it did not exist.
type Event struct {
	fwk.ClusterEvent
	Old, New any
}

// covers says whether a registered event is one that happened.
func covers(registered, happened fwk.ClusterEvent) bool {
	if registered.ActionType&happened.ActionType == 0 {
		return false
	}
	if registered.Resource == happened.Resource || registered.Resource == fwk.WildCard || happened.Resource == fwk.WildCard {
		return true
	}
	if registered.Resource == fwk.Pod {
		return happened.Resource == fwk.AssignedPod || happened.Resource == fwk.UnscheduledPod || happened.Resource == fwk.TargetPod
	}
	return false
}

// order is a heap of items.
type order struct {
	items []*Item
	less  func(a, b *Item) bool
}

func (o *order) Len() int           { return len(o.items) }
func (o *order) Less(i, j int) bool { return o.less(o.items[i], o.items[j]) }
func (o *order) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	o.items[i].index, o.items[j].index = i, j
}

func (o *order) Push(x any) {
	item := x.(*Item) //nolint:forcetypeassert // the queue pushes nothing else
	item.index = len(o.items)
	o.items = append(o.items, item)
}

func (o *order) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	o.items[last] = nil
	o.items = o.items[:last]
	return item
}

func uidOf(pod *corev1.Pod) string { return string(pod.UID) }
