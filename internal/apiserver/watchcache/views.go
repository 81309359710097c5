// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"sync"
	"sync/atomic"
	"weak"

	"github.com/mortise-dev/mortise/store"
)

const (
	recentLists = 8 // what one of so many lists had is not dropped for another list
	roomTries   = 8 // how many entries are looked at to make room for one
)

// Views bounds what the forms on records take together. Who writes or gets an object drops the oldest forms for it; a list
// only drops forms that are of no use any more, or that no list has had for a while.
//
// Worked example: there is room for 10,000 objects, and 100,000 are listed again and again. The first 10,000 are kept, and
// each list finds them; the other 90,000 are decoded and forgotten each time. Had each been kept, the list would have found
// none: the first would have gone for the last.
type Views struct {
	max   int64
	lists atomic.Int64 // how many lists have begun

	mu    sync.Mutex
	total int64
	queue []viewEntry
	first int
}

// viewEntry is a record with forms, which it does not keep alive.
type viewEntry struct {
	record weak.Pointer[store.Record]
	size   int64
}

// NewViews bounds forms at about max bytes.
func NewViews(max int64) *Views { return &Views{max: max} }

// add counts new forms of a record, and drops the oldest ones for them.
func (v *Views) add(r *store.Record, size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(viewEntry{record: weak.Make(r), size: size})
	for v.total > v.max && v.first < len(v.queue) {
		old := v.pop().record.Value()
		if old == nil || old == r {
			continue
		}
		if f, ok := old.View().(*Forms); ok { // a record may be in the queue more than once
			old.SetView(f.left())
		}
	}
}

// grow counts what was added to forms that are there.
func (v *Views) grow(r *store.Record, size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(viewEntry{record: weak.Make(r), size: size})
}

// room says whether forms of a size fit, and drops what may go for a list.
func (v *Views) room(size int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.lists.Load()
	for range roomTries {
		if v.total+size <= v.max || v.first == len(v.queue) {
			break
		}
		e := v.pop()
		r := e.record.Value()
		if r == nil {
			continue
		}
		f, ok := r.View().(*Forms)
		switch {
		case !ok:
		case now-f.listed.Load() > recentLists:
			r.SetView(f.left())
		default:
			v.push(e)
		}
	}
	return v.total+size <= v.max
}

func (v *Views) push(e viewEntry) {
	v.queue = append(v.queue, e)
	v.total += e.size
}

func (v *Views) pop() viewEntry {
	e := v.queue[v.first]
	v.queue[v.first] = viewEntry{}
	v.first++
	v.total -= e.size
	if v.first > 1024 && v.first*2 > len(v.queue) {
		v.queue = append([]viewEntry(nil), v.queue[v.first:]...)
		v.first = 0
	}
	return e
}
