// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"container/heap"
	"slices"
	"time"

	"github.com/mortise-dev/mortise/store"
)

const expireAtOnce = 256 // keys that one transaction expires

// expiries is a heap of the records with an expiry, soonest first. Replaced and deleted records stay until they would have expired, or
// until they are half of all.
type expiries []*store.Record

// expect adds a record that has an expiry, and counts a replaced or deleted one.
func (d *DB) expect(r, replaced *store.Record) {
	if r != nil && !r.Expires.IsZero() {
		heap.Push(&d.expiries, r)
	}
	if replaced == nil || replaced.Expires.IsZero() {
		return
	}
	const few = 64
	if d.stale++; d.stale < few || d.stale < len(d.expiries)/2 {
		return
	}
	d.stale = 0
	d.expiries = slices.DeleteFunc(d.expiries, func(r *store.Record) bool {
		current, _ := d.staged.Get(r.Key)
		return current != r
	})
	heap.Init(&d.expiries)
}

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (e expiries) Len() int           { return len(e) }
func (e expiries) Less(i, j int) bool { return e[i].Expires.Before(e[j].Expires) }
func (e expiries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push appends an element.
func (e *expiries) Push(x any) { *e = append(*e, x.(*store.Record)) }

// Pop removes the last element.
func (e *expiries) Pop() any {
	old := *e
	r := old[len(old)-1]
	old[len(old)-1] = nil
	*e = old[:len(old)-1]
	return r
}

// NextExpiry returns when the next key expires; zero if none does.
func (d *DB) NextExpiry() time.Time {
	for len(d.expiries) > 0 {
		r := d.expiries[0]
		if current, _ := d.staged.Get(r.Key); current == r {
			return r.Expires
		}
		heap.Pop(&d.expiries)
		d.stale--
	}
	return time.Time{}
}

// StageExpired stages the deletion of expired keys, in one transaction; the result has no events if there are none. The caller repeats the
// call until NextExpiry is after now.
func (d *DB) StageExpired(now time.Time) Change {
	first := len(d.events)
	for len(d.events)-first < expireAtOnce {
		at := d.NextExpiry()
		if at.IsZero() || at.After(now) {
			break
		}
		r := heap.Pop(&d.expiries).(*store.Record)
		d.stale-- // apply counts it
		d.apply(store.Event{Revision: d.revision + 1, Key: r.Key, Previous: r})
	}
	if len(d.events) == first {
		return Change{Revision: d.revision}
	}
	d.revision++
	return Change{Revision: d.revision, Events: d.events[first:len(d.events):len(d.events)]}
}
