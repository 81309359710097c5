// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package queue is the queue of pods that wait for scheduling.
//
// A pod is in one of these subqueues: active (ready to be scheduled, highest priority first), backoff (rejected recently, and an event
// since may have made it schedulable), error backoff (its attempt failed through no fault of its own), waiting (no event has made it
// schedulable), or in flight (the scheduling loop has it). A pod that a PreEnqueue plug-in gates waits too.
//
// A waiting pod moves only when an event comes for which a plug-in that rejected it has registered, and whose hint returns that it may
// help. The queue keeps events that happen while a pod is in flight and applies them to its rejection, so that it misses none: node-added,
// between a pod's snapshot and its rejection, moves the pod as if it had come after. Backoff is 1 s, doubled by each rejection, at most 10
// s. The queue retries a pod that has waited five minutes in any case.
//
// The queue does not poll: one timer is set for the next moment at which a pod becomes due.
package queue

import (
	"container/heap"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// Profile is the part of a profile that the queue uses. A queue serves several profiles, which sort alike.
type Profile interface {
	RunPreEnqueue(ctx context.Context, pod *corev1.Pod) *fwk.Status
	Signature(ctx context.Context, pod *corev1.Pod) fwk.PodSignature
	QueueSort() fwk.QueueSortPlugin
	Events() map[string][]fwk.ClusterEventWithHint
}

// Options are a queue's settings.
type Options struct {
	InitialBackoff, MaxBackoff time.Duration              // 0: 1 s and 10 s
	MaxWait                    time.Duration              // 0: five minutes
	Clock                      clock.WithDelayedExecution // nil: the real one
	Logger                     *slog.Logger
	// Incoming is called for each pod that enters a part of the queue, with the event that caused it. Nil: no call.
	Incoming func(part, event string)
	// Hinted is called for each queueing hint, with its duration. Nil: no call.
	Hinted func(plugin, event string, hint fwk.QueueingHint, took time.Duration)
}

// Queue holds the waiting pods. Its methods may be called concurrently.
type Queue struct {
	*nominator

	options  Options
	profiles map[string]Profile

	mu       sync.Mutex
	items    map[string]*Item    // by UID, without those in flight
	sort     fwk.QueueSortPlugin // from any profile
	active   order
	backoff  order
	errors   order
	overdue  order                       // the waiting, ungated items, longest first
	waiting  map[string]map[string]*Item // by the plug-in that rejected them, then UID; "" for errors
	inFlight map[string]int              // by UID, the index of the first event that counts
	events   []Event                     // since the start of the oldest attempt in flight
	first    int                         // index of events[0]
	wake     chan struct{}               // closed when there may be something to pop
	timer    clock.Timer                 // for the next moment at which a pod is due, or nil
	due      time.Time                   // that moment
	cause    string                      // of the current move
}

// New returns an empty queue. At least one profile must exist when the first pod is added.
func New(profiles map[string]Profile, o Options) *Queue {
	if o.InitialBackoff == 0 {
		o.InitialBackoff = time.Second
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = 10 * time.Second
	}
	if o.MaxWait == 0 {
		o.MaxWait = 5 * time.Minute
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	q := &Queue{
		nominator: newNominator(), options: o, profiles: profiles, items: map[string]*Item{},
		waiting: map[string]map[string]*Item{}, inFlight: map[string]int{}, wake: make(chan struct{}),
	}
	byReady := func(a, b *Item) bool { return a.ready.Before(b.ready) }
	q.active.less = func(a, b *Item) bool { return q.sort.Less(a, b) }
	q.backoff.less, q.errors.less = byReady, byReady
	q.overdue.less = func(a, b *Item) bool { return a.added.Before(b.added) }
	return q
}

// Add adds a new pod.
func (q *Queue) Add(ctx context.Context, pod *corev1.Pod) {
	// Ignore an unreadable affinity term: validation rejects those, and so do plug-ins that need the term.
	info, _ := nodeinfo.NewPodInfo(pod)
	item := &Item{PodInfo: info}
	if p := q.profiles[pod.Spec.SchedulerName]; p != nil {
		item.Signature = p.Signature(ctx, pod)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.items[uidOf(pod)] != nil {
		return
	}
	item.added = q.options.Clock.Now()
	q.cause = unscheduledPodAdd
	q.enter(ctx, item, active)
	if pod.Status.NominatedNodeName != "" {
		q.AddNominatedPod(klog.Logger{}, info, nil)
	}
}

// enter moves an item to the active or a backoff queue, or to the waiting items if a plug-in gates it.
func (q *Queue) enter(ctx context.Context, item *Item, to subqueue) {
	q.take(item)
	item.gate = ""
	if p := q.profiles[item.Pod.Spec.SchedulerName]; p != nil {
		if st := p.RunPreEnqueue(ctx, item.Pod); !st.IsSuccess() {
			item.gate = st.Plugin()
			item.UnschedulablePlugins = item.UnschedulablePlugins.Union(sets.New(st.Plugin()))
			to = waiting
		}
	}
	q.put(item, to)
}

func (q *Queue) put(item *Item, to subqueue) {
	q.take(item)
	q.items[uidOf(item.Pod)] = item
	item.subqueue = to
	q.came(item)
	switch to {
	case active:
		for _, p := range q.profiles {
			if q.sort == nil {
				q.sort = p.QueueSort()
			}
		}
		heap.Push(&q.active, item)
		q.notify()
	case backoff:
		heap.Push(&q.backoff, item)
		q.notify()
	case errorBackoff:
		heap.Push(&q.errors, item)
		q.schedule()
	case waiting:
		for plugin := range rejectors(item) {
			m := q.waiting[plugin]
			if m == nil {
				m = map[string]*Item{}
				q.waiting[plugin] = m
			}
			m[uidOf(item.Pod)] = item
		}
		if item.gate == "" {
			heap.Push(&q.overdue, item)
			q.schedule()
		}
	}
}

func rejectors(item *Item) sets.Set[string] {
	all := item.UnschedulablePlugins.Union(item.PendingPlugins)
	if len(all) == 0 {
		all = sets.New("")
	}
	return all
}

// take removes an item from its subqueue.
func (q *Queue) take(item *Item) {
	switch item.subqueue {
	case active:
		heap.Remove(&q.active, item.index)
	case backoff:
		heap.Remove(&q.backoff, item.index)
	case errorBackoff:
		heap.Remove(&q.errors, item.index)
	case waiting:
		if item.gate == "" {
			heap.Remove(&q.overdue, item.index)
		}
		for plugin := range rejectors(item) {
			delete(q.waiting[plugin], uidOf(item.Pod))
		}
	case none:
	}
	item.subqueue = none
	delete(q.items, uidOf(item.Pod))
}

func (q *Queue) notify() {
	close(q.wake)
	q.wake = make(chan struct{})
}

// Pop waits for the next pod to try and returns it. The pod is then in flight: [Queue.Failed] or [Queue.Done] must follow.
func (q *Queue) Pop(ctx context.Context) (*Item, error) {
	for {
		q.mu.Lock()
		q.release()
		var item *Item
		switch {
		case q.active.Len() > 0:
			item = q.active.items[0]
		case q.backoff.Len() > 0:
			item = q.backoff.items[0]
		}
		if item != nil {
			if item.subqueue == backoff && q.options.Incoming != nil {
				q.options.Incoming(partActive, popFromBackoff)
			}
			q.take(item)
			now := q.options.Clock.Now()
			if item.firstAttempt == nil {
				item.firstAttempt = &now
			}
			item.attempts++
			q.inFlight[uidOf(item.Pod)] = q.first + len(q.events)
			q.mu.Unlock()
			return item, nil
		}
		wake := q.wake
		q.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Done ends a pod's flight: it is bound, or deleted.
func (q *Queue) Done(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.land(uidOf(pod))
}

// land ends a flight and drops the events that no pod in flight needs any more.
func (q *Queue) land(uid string) {
	from, ok := q.inFlight[uid]
	if !ok {
		return
	}
	delete(q.inFlight, uid)
	if from != q.first && len(q.inFlight) > 0 {
		return
	}
	oldest := q.first + len(q.events)
	for _, at := range q.inFlight {
		oldest = min(oldest, at)
	}
	kept := copy(q.events, q.events[oldest-q.first:])
	clear(q.events[kept:])
	q.events, q.first = q.events[:kept], oldest
}

// Failed returns a pod in flight to the queue. The item's plug-in sets name the plug-ins that rejected it; pod is its newest version.
func (q *Queue) Failed(ctx context.Context, item *Item, pod *corev1.Pod) {
	info, _ := nodeinfo.NewPodInfo(pod)
	q.mu.Lock()
	defer q.mu.Unlock()
	uid := uidOf(item.Pod)
	item.PodInfo = info
	item.added = q.options.Clock.Now()
	rejected := len(item.UnschedulablePlugins)+len(item.PendingPlugins) > 0
	if rejected {
		item.unschedulable++
		item.errors = 0
	} else {
		item.errors++
	}
	q.cause = scheduleAttemptFailure
	worth := worthNothing
	if from, ok := q.inFlight[uid]; ok && rejected {
		for _, e := range q.events[from-q.first:] {
			if worth = max(worth, q.worth(item, e)); worth == worthNow {
				break
			}
		}
	}
	q.land(uid)
	if q.items[uid] != nil {
		return
	}
	switch {
	case !rejected:
		item.ready = item.added.Add(q.wait(item.errors))
		q.put(item, errorBackoff)
	default:
		q.move(ctx, item, worth)
	}
}

// wait returns the backoff after the n-th failure.
func (q *Queue) wait(n int) time.Duration {
	d := q.options.InitialBackoff
	for ; n > 1; n-- {
		if d *= 2; d >= q.options.MaxBackoff {
			return q.options.MaxBackoff
		}
	}
	return d
}

// The effects of an event on a pod.
const (
	worthNothing = iota
	worthBackoff
	worthNow // a plug-in that the pod waits for returned Queue: no backoff
)

func (q *Queue) worth(item *Item, e Event) int {
	p := q.profiles[item.Pod.Spec.SchedulerName]
	if p == nil {
		return worthNothing
	}
	if pod, ok := e.New.(*corev1.Pod); ok && e.Resource == fwk.TargetPod && pod.UID != item.Pod.UID {
		return worthNothing // the event is about another pod
	}
	if item.gate != "" && !slices.ContainsFunc(p.Events()[item.gate],
		func(r fwk.ClusterEventWithHint) bool { return covers(r.Event, e.ClusterEvent) }) {
		return worthNothing // whatever it means for the other plug-ins that rejected the pod
	}
	best := worthNothing
	for plugin := range rejectors(item) {
		if plugin == "" {
			return worthBackoff // the attempt failed with an error, so any event may help
		}
		for _, r := range p.Events()[plugin] {
			if !covers(r.Event, e.ClusterEvent) {
				continue
			}
			if r.QueueingHintFn != nil {
				hint, err := q.ask(plugin, r.QueueingHintFn, item.Pod, e)
				if err != nil {
					q.options.Logger.Warn("Queueing hint failed", "plugin", plugin, "event", e.Label(), "error", err)
				} else if hint == fwk.QueueSkip {
					continue
				}
			}
			if item.PendingPlugins.Has(plugin) {
				return worthNow
			}
			best = worthBackoff
		}
	}
	return best
}

func (q *Queue) move(ctx context.Context, item *Item, worth int) {
	switch worth {
	case worthNothing:
		q.put(item, waiting)
		return
	case worthBackoff:
		if item.gate == "" || item.unschedulable > 0 {
			item.ready = item.added.Add(q.wait(item.unschedulable))
			if q.options.Clock.Now().Before(item.ready) {
				q.enter(ctx, item, backoff)
				return
			}
		}
	}
	q.enter(ctx, item, active)
}

// MoveOnEvent moves the waiting pods that an event may help.
func (q *Queue) MoveOnEvent(ctx context.Context, e Event) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.happened(ctx, e, "")
}

func (q *Queue) happened(ctx context.Context, e Event, but string) {
	if len(q.inFlight) > 0 && q.anybodyRegistered(e) {
		q.events = append(q.events, e)
	}
	var concerned []*Item
	for plugin, items := range q.waiting {
		if len(items) == 0 || !q.anyRegistered(plugin, e) {
			continue
		}
		for _, item := range items {
			concerned = append(concerned, item)
		}
	}
	for _, item := range concerned {
		if item.subqueue != waiting || uidOf(item.Pod) == but {
			continue
		}
		if w := q.worth(item, e); w != worthNothing {
			if q.options.Incoming != nil {
				q.cause = e.Label()
			}
			q.move(ctx, item, w)
		}
	}
}

// MoveOnEventExcept is MoveOnEvent for all pods but one, which caused the event.
func (q *Queue) MoveOnEventExcept(ctx context.Context, e Event, pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	from, flying := q.inFlight[uidOf(pod)]
	q.happened(ctx, e, uidOf(pod))
	if flying {
		q.inFlight[uidOf(pod)] = max(from, q.first+len(q.events))
	}
}

func (q *Queue) anybodyRegistered(e Event) bool {
	for _, p := range q.profiles {
		for _, registered := range p.Events() {
			for _, r := range registered {
				if covers(r.Event, e.ClusterEvent) {
					return true
				}
			}
		}
	}
	return false
}

func (q *Queue) anyRegistered(plugin string, e Event) bool {
	if plugin == "" {
		return true
	}
	for _, p := range q.profiles {
		for _, r := range p.Events()[plugin] {
			if covers(r.Event, e.ClusterEvent) {
				return true
			}
		}
	}
	return false
}
