// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/mortise-dev/mortise/store"
)

const (
	recentLists = 8 // a list does not drop objects that one of this many previous lists read
	roomTries   = 8 // entries that are checked to make room for one

	restAfter  = 2 * time.Second // without lists and with few new objects, after which all are dropped; up to twice that
	restShare  = 64              // one in so many of the bytes that may be cached is few
	worthwhile = 16 << 20        // bytes of dropped objects that are worth a collection
)

// Views bounds the memory of the cached objects on records. A write or GET drops the oldest ones. A list drops only
// objects that are outdated or that no recent list read.
//
// Worked example: there is room for 10,000 objects, and clients list 100,000 again and again. The first 10,000 stay
// cached, and each list finds them; it decodes the other 90,000 each time. If each were cached, a list would find none:
// the last ones would have displaced the first.
//
// When little was added and no list has begun for a while, all are dropped: what a burst of requests has left is memory that a server at
// rest, in which controllers still renew leases, does not need, and an object that is read again is decoded once. Then the garbage is
// collected, which no further work would cause.
type Views struct {
	max   int64
	lists atomic.Int64 // number of lists that have begun

	mu    sync.Mutex
	total int64
	queue []viewEntry
	first int
	added int64
	fresh fresh
	rest  *time.Timer // drops all objects; nil: there are none
	last  activity    // when rest was looked at last
}

// activity is what happened so far: bytes that were added, and lists.
type activity struct{ added, lists int64 }

// viewEntry is a record with a cached object; it does not keep the record alive.
type viewEntry struct {
	record weak.Pointer[store.Record]
	size   int64
}

// NewViews limits the size of cached objects to about max bytes.
func NewViews(max int64) *Views { return &Views{max: max} }

// add counts a record's new cached object, and drops the oldest ones.
func (v *Views) add(r *store.Record, size int64) {
	e := viewEntry{record: weak.Make(r), size: size} // without the lock: it can take long
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(e)
	for v.total > v.max && v.first < len(v.queue) {
		if old := v.pop().record.Value(); old != r {
			drop(old)
		}
	}
}

// drop drops the cached object of a record, which may be nil, or have none: it may be in the queue more than once.
func drop(r *store.Record) {
	if r == nil {
		return
	}
	if f, ok := r.View().(*CachedObject); ok {
		r.SetView(f.left())
	}
}

// dropAtRest drops all objects if nothing happened since the last call, and is called again later otherwise.
func (v *Views) dropAtRest() {
	if v.dropIdle() >= worthwhile {
		runtime.GC()
	}
}

// dropIdle returns the size of what it dropped.
func (v *Views) dropIdle() (size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := activity{v.added, v.lists.Load()}
	if now.lists != v.last.lists || now.added-v.last.added > v.max/restShare {
		v.last = now
		v.rest.Reset(restAfter)
		return 0
	}
	v.last = now
	for size = v.total + v.fresh.total; v.first < len(v.queue); {
		drop(v.pop().record.Value())
	}
	v.fresh.shrink(0)
	v.queue, v.first, v.rest = nil, 0, nil
	return size
}

// grow counts a new encoding of a cached object.
func (v *Views) grow(r *store.Record, size int64) {
	e := viewEntry{record: weak.Make(r), size: size} // without the lock: it can take long
	v.mu.Lock()
	defer v.mu.Unlock()
	v.push(e)
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
	v.happened(e.size)
}

// happened counts the bytes of a new entry, and looks out for the rest. The caller holds the lock.
func (v *Views) happened(size int64) {
	v.added += size
	if v.rest == nil {
		v.rest = time.AfterFunc(restAfter, v.dropAtRest)
	}
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
