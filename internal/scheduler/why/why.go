// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package why keeps what the scheduler decided about each pod lately, for those who ask why a pod is where it is, or nowhere.
//
// The scheduling loop writes a [Decision] down when it has made it ([Keeper.Add]); whatever comes of it is added under the
// keeper's lock ([Keeper.Change]). What is written down is what the decision left at hand: nothing is computed for it, and
// a decision is turned into words when somebody asks ([Keeper.Scheduling]). Where a pod is at the moment is not kept, but asked of
// the running scheduler ([Keeper.Attach]).
//
// # Bounds
//
// Of each pod the last [MostDecisions] are kept; there are so many pods and bytes at most, and the pod goes first that
// was decided about longest ago. Bytes are counted by an estimate of what the slices and texts of a decision take up. Another pod of the
// same name begins anew.
package why

import (
	"cmp"
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
)

// MostDecisions are kept of one pod.
const MostDecisions = 4

// MostVictims are named of one preemption.
const MostVictims = 20

// longest is how much of a message is kept.
const longest = 2048

// Options are a keeper's bounds.
type Options struct {
	Pods  int   // 0: 20,000
	Bytes int64 // 0: 8 MiB
}

// Decision is one attempt to schedule a pod. Once it is added, it is the keeper's: it is changed by [Keeper.Change] alone.
type Decision struct {
	Namespace, Name string
	UID             types.UID
	Time            time.Time
	Took            time.Duration
	Cycle           uint64
	Attempt         int
	Profile         string

	core.Account

	Outcome   string // one of trace's
	Message   string
	Node      string
	Nominated string
	Victims   []trace.Victim
	More      int // victims that are not named

	bytes int64
	gone  bool // forgotten
}

// Live tells where a pod is now; nil where the scheduler does not have it.
type Live interface {
	Place(namespace, name string) (types.UID, *trace.Place)
}

// Keeper keeps decisions. A nil one keeps none. Its methods may be called concurrently.
type Keeper struct {
	options Options

	mu    sync.Mutex
	pods  map[types.NamespacedName]*list.Element // of *pod
	order list.List                              // touched last first
	bytes int64
	live  Live
}

// pod is what is kept of one.
type pod struct {
	key       types.NamespacedName
	uid       types.UID
	decisions []*Decision // oldest first
}

// New makes a keeper.
func New(o Options) *Keeper {
	o.Pods, o.Bytes = cmp.Or(o.Pods, 20_000), cmp.Or(o.Bytes, 8<<20)
	return &Keeper{options: o, pods: map[types.NamespacedName]*list.Element{}}
}

// Attach has the keeper ask a running scheduler where pods are, until detach is called.
func (k *Keeper) Attach(l Live) (detach func()) {
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

// Add writes a decision down.
func (k *Keeper) Add(d *Decision) {
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

// Change has change say what came of a decision that was added.
func (k *Keeper) Change(d *Decision, change func(*Decision)) {
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

// forget forgets the oldest n decisions of a pod. The lock is held.
func (k *Keeper) forget(p *pod, n int) {
	for _, d := range p.decisions[:n] {
		k.bytes -= d.bytes
		d.gone = true
	}
	kept := copy(p.decisions, p.decisions[n:])
	clear(p.decisions[kept:])
	p.decisions = p.decisions[:kept]
}

// shrink keeps the bounds. The lock is held.
func (k *Keeper) shrink() {
	for k.order.Len() > 1 && (k.bytes > k.options.Bytes || k.order.Len() > k.options.Pods) {
		e := k.order.Back()
		p := e.Value.(*pod) //nolint:forcetypeassert // nothing else is put in
		k.forget(p, len(p.decisions))
		k.order.Remove(e)
		delete(k.pods, p.key)
		k.bytes -= podBytes
	}
}

// What things take up, about.
const (
	podBytes      = 250 // with its places in map and list
	decisionBytes = 500
	filteredBytes = 80
	scoresBytes   = 100
	stringBytes   = 16
)

// size is about how much a decision takes up. Names of plug-ins and nodes are shared with others.
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
