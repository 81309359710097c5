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
	recentLists = 8 // a list does not drop objects that one of this many previous lists read
	roomTries   = 8 // entries that are checked to make room for one
)

// Views bounds the memory of the cached objects on records. A write or GET drops the oldest ones. A list drops only
// objects that are outdated or that no recent list read.
//
// Worked example: there is room for 10,000 objects, and clients list 100,000 again and again. The first 10,000 stay
// cached, and each list finds them; it decodes the other 90,000 each time. If each were cached, a list would find none:
// the last ones would have displaced the first.
type Views struct {
	max   int64
	lists atomic.Int64 // number of lists that have begun

	mu    sync.Mutex
	total int64
	queue []viewEntry
	first int
}

// viewEntry is a record with a cached object; it does not keep the record alive.
type viewEntry struct {
	record weak.Pointer[store.Record]
	size   int64
}

// NewViews limits the size of cached objects to about max bytes.
func NewViews(max int64) *Views { return &Views{max: max} }

// add counts a record's new cached object, and drops the oldest ones.
func (v *Views) add(r *store.Record, size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(viewEntry{record: weak.Make(r), size: size})
	for v.total > v.max && v.first < len(v.queue) {
		old := v.pop().record.Value()
		if old == nil || old == r {
			continue
		}
		if f, ok := old.View().(*CachedObject); ok { // a record may be in the queue more than once
			old.SetView(f.left())
		}
	}
}

// grow counts a new encoding of a cached object.
func (v *Views) grow(r *store.Record, size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(viewEntry{record: weak.Make(r), size: size})
}

// room reports whether a cached object of a size fits, after dropping objects that a list may drop.
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
		f, ok := r.View().(*CachedObject)
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
