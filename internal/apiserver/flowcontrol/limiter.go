// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Limiter bounds requests under way by two numbers, for those that read and those that write: what there is without priorities.
// A bound of 0 is none.
type Limiter struct {
	MaxReads, MaxWrites int64

	reads, writes counter
}

// counter is how many requests there are, and how many there were at once in the second of the last one's coming.
type counter struct {
	now  atomic.Int64
	peak atomic.Int64 // the second, and in its lower bits the count
}

const countBits = 24

func (l *Limiter) of(method string) (*counter, int64) {
	if method == http.MethodGet || method == http.MethodHead {
		return &l.reads, l.MaxReads
	}
	return &l.writes, l.MaxWrites
}

// Enter counts a request; false: the limit is reached. After true the caller calls Leave.
func (l *Limiter) Enter(method string, exempt bool, now time.Time) bool {
	c, bound := l.of(method)
	n := c.now.Add(1)
	if bound > 0 && n > bound && !exempt {
		c.now.Add(-1)
		return false
	}
	c.reach(now, n)
	return true
}

// reach records that n requests were concurrent.
func (c *counter) reach(now time.Time, n int64) {
	second := now.Unix() << countBits
	for {
		p := c.peak.Load()
		if p >= second+n || c.peak.CompareAndSwap(p, second+n) {
			return
		}
	}
}

// Leave counts a request out.
func (l *Limiter) Leave(method string) {
	c, _ := l.of(method)
	c.now.Add(-1)
}

// Peaks returns the maximum number of concurrent requests in the last second.
func (l *Limiter) Peaks(now time.Time) (reads, writes int64) {
	return l.reads.at(now), l.writes.at(now)
}

func (c *counter) at(now time.Time) int64 {
	if p := c.peak.Load(); p>>countBits >= now.Unix()-1 {
		return max(p&(1<<countBits-1), c.now.Load())
	}
	return c.now.Load()
}
