// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"sync/atomic"
	"time"
)

// recency is the last moment of which it is known that the mirror has all that was committed before.
type recency struct {
	base time.Time    // does not change
	last atomic.Int64 // nanoseconds after base
}

// Lags implements [store.StaleReader].
func (r *recency) Lags() {}

// now returns a moment to be confirmed.
func (r *recency) now() int64 { return int64(time.Since(r.base)) }

// confirm notes that the mirror has all that was committed before a moment.
func (r *recency) confirm(moment int64) {
	for {
		last := r.last.Load()
		if last >= moment || r.last.CompareAndSwap(last, moment) {
			return
		}
	}
}

// within reports whether the mirror lags by no more than d.
func (r *recency) within(d time.Duration) bool { return r.now()-r.last.Load() <= int64(d) }
