// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"sync"
	"sync/atomic"
)

// maxAfter is the maximum Retry-After in seconds.
const maxAfter = 32

// dropped computes the Retry-After of rejected requests: twice as long when many were rejected during that time, a second
// less when few were.
type dropped struct {
	after atomic.Int64 // seconds; 0 is 1

	mu      sync.Mutex
	history []tally
	current tally
	changed int64 // the second in which after was last doubled
}

type tally struct{ second, n int64 }

// note counts a request that was rejected in the given second.
func (d *dropped) note(second int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.current.second == second {
		d.current.n++
		return
	}
	after := max(d.after.Load(), 1)
	d.history = append(d.history, d.current)
	for len(d.history) > 0 && d.current.second-d.history[0].second > min(2*after, maxAfter) {
		d.history = d.history[1:]
	}
	d.current = tally{second, 1}
	n := int64(0)
	for _, t := range d.history {
		if second-t.second <= after && t.second < second {
			n += t.n
		}
	}
	switch {
	case second-d.changed >= after && n >= 3*after:
		d.after.Store(min(2*after, maxAfter))
		d.changed = second
	case n < after && after > 1:
		d.after.Store(after - 1)
	}
}
