// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package decisionlog keeps the scheduler's latest decisions about each pod, so that users can ask why a pod runs on its node, or on none.
//
// The scheduling loop adds a [Decision] when it has made it ([Log.Add]) and changes it when its outcome is known ([Log.Change]). A decision
// holds data that the loop has anyway: the log computes nothing for it, and formats it on request ([Log.Scheduling]). The log does not
// store where a pod is now, but asks the running scheduler ([Log.Attach]).
//
// # Bounds
//
// The log keeps the last [MostDecisions] of each pod. It bounds the number of pods and bytes, and first drops the pod whose last decision
// is the oldest. It estimates bytes from the slices and texts of a decision. A new pod of the same name starts afresh.
package decisionlog

import (
	"cmp"
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
)

// MostDecisions is the number of decisions that the log keeps for one pod.
const MostDecisions = 4

// MostVictims is the number of victims that a decision names.
const MostVictims = 20

// longest is the number of bytes that the log keeps of a message.
const longest = 2048

// Options are a log's bounds.
type Options struct {
	Pods  int   // 0: 20,000
	Bytes int64 // 0: 8 MiB
}

// Decision is one attempt to schedule a pod. Once it is added, it belongs to the log, and only [Log.Change] changes it.
type Decision struct {
	Namespace, Name string
	UID             types.UID
	Time            time.Time
	Took            time.Duration
	Cycle           uint64
	Attempt         int
	Profile         string

	core.Account

	Outcome   string // a constant of package trace
	Message   string
	Node      string
	Nominated string
	Victims   []trace.Victim
	More      int // the number of victims that are not named

	bytes int64
	gone  bool // dropped from the log
}

// Live finds where a pod is now; nil if the scheduler does not know the pod.
type Live interface {
	Place(namespace, name string) (types.UID, *trace.Place)
}

// Log records decisions. A nil Log records none. It is safe for concurrent use.
type Log struct {
	options Options

	mu    sync.Mutex
	pods  map[types.NamespacedName]*list.Element // of *pod
	order list.List                              // touched last first
	bytes int64
	live  Live
}

// pod is the record of one pod.
type pod struct {
	key       types.NamespacedName
	uid       types.UID
	decisions []*Decision // oldest first
}

// New returns an empty log.
func New(o Options) *Log {
	o.Pods, o.Bytes = cmp.Or(o.Pods, 20_000), cmp.Or(o.Bytes, 8<<20)
	return &Log{options: o, pods: map[types.NamespacedName]*list.Element{}}
}

// Attach lets the log ask a running scheduler where pods are, until detach is called.
func (k *Log) Attach(l Live) (detach func()) {
	if k == nil {
		return func() {}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.live = l
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.live == l {
			k.live = nil
		}
	}
}

// Add records a decision.
func (k *Log) Add(d *Decision) {
	if k == nil {
		return
	}
	d.bytes = d.size()
	key := types.NamespacedName{Namespace: d.Namespace, Name: d.Name}
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.pods[key]
	if e == nil {
		e = k.order.PushFront(&pod{key: key, uid: d.UID})
		k.pods[key] = e
		k.bytes += podBytes
	} else {
		k.order.MoveToFront(e)
	}
	p := e.Value.(*pod) //nolint:forcetypeassert // nothing else is put in
	if p.uid != d.UID {
		k.forget(p, len(p.decisions))
		p.uid = d.UID
	}
	if len(p.decisions) == MostDecisions {
		k.forget(p, 1)
	}
	p.decisions = append(p.decisions, d)
	k.bytes += d.bytes
	k.shrink()
}

// Change updates a recorded decision with its outcome.
func (k *Log) Change(d *Decision, change func(*Decision)) {
	if k == nil || d == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	change(d)
	if d.gone {
		return
	}
	k.bytes -= d.bytes
	d.bytes = d.size()
	k.bytes += d.bytes
	k.shrink()
}

// forget drops the oldest n decisions of a pod. The caller holds the lock.
func (k *Log) forget(p *pod, n int) {
	for _, d := range p.decisions[:n] {
		k.bytes -= d.bytes
		d.gone = true
	}
	kept := copy(p.decisions, p.decisions[n:])
	clear(p.decisions[kept:])
	p.decisions = p.decisions[:kept]
}

// shrink enforces the bounds. The caller holds the lock.
func (k *Log) shrink() {
	for k.order.Len() > 1 && (k.bytes > k.options.Bytes || k.order.Len() > k.options.Pods) {
		e := k.order.Back()
		p := e.Value.(*pod) //nolint:forcetypeassert // nothing else is put in
		k.forget(p, len(p.decisions))
		k.order.Remove(e)
		delete(k.pods, p.key)
		k.bytes -= podBytes
	}
}

// Approximate sizes in memory.
const (
	podBytes      = 250 // with its entries in map and list
	decisionBytes = 500
	filteredBytes = 80
	scoresBytes   = 100
	stringBytes   = 16
)

// size estimates the memory of a decision. Names of plug-ins and nodes are shared with other objects.
func (d *Decision) size() int64 {
	d.Message = d.Message[:min(len(d.Message), longest)]
	n := decisionBytes + len(d.Message)
	for i := range d.Filtered {
		n += filteredBytes + len(d.Filtered[i].Reason) + stringBytes*len(d.Filtered[i].Nodes)
	}
	for i := range d.Scores {
		n += scoresBytes + 16*len(d.Scores[i].Raw)
	}
	for i := range d.Victims {
		n += 3*stringBytes + len(d.Victims[i].Namespace) + len(d.Victims[i].Name) + len(d.Victims[i].UID)
	}
	return int64(n)
}
