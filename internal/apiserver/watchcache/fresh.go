// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"weak"

	"github.com/mortise-dev/mortise/store"
)

// freshShare is the part of the memory for cached objects that those may take that were created and not read since: one in so many.
const freshShare = 8

// fresh is the cached objects that no request has read since they were created, the oldest first. They are dropped soon, since a burst of
// creates would fill the memory with them. One that is read counts among the others from then on. The lock of [Views] guards it.
type fresh struct {
	queue []viewEntry
	total int64
}

// addFresh counts the cached object of a record that was created.
func (v *Views) addFresh(r *store.Record, size int64) {
	e := viewEntry{record: weak.Make(r), size: size}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh.queue = append(v.fresh.queue, e)
	v.fresh.total += size
	v.fresh.shrink(v.max / freshShare)
	v.happened(size)
}

// shrink takes the oldest objects off the queue until the rest has a size, and drops them from the cache unless a request has read them.
func (f *fresh) shrink(size int64) {
	n := 0
	for ; f.total > size && n < len(f.queue); n++ {
		f.total -= f.queue[n].size
		if r := f.queue[n].record.Value(); r != nil {
			if c, ok := r.View().(*CachedObject); ok && c.fresh.Load() {
				r.ReplaceView(c, c.left())
			}
		}
	}
	if f.queue = f.queue[n:]; len(f.queue) == 0 {
		f.queue = nil
	}
}
