// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Limiter bounds concurrent read-only and mutating requests by two numbers. It is used without priorities. 0 is no
// bound.
type Limiter struct {
	MaxReads, MaxWrites int64

	reads, writes counter
}

// counter counts concurrent requests, with the maximum in the second of the latest arrival.
type counter struct {
	now  atomic.Int64
	peak atomic.Int64 // the second, with the maximum in the lower bits
}

const countBits = 24

func (l *Limiter) of(method string) (*counter, int64) {
	if method == http.MethodGet || method == http.MethodHead {
		return &l.reads, l.MaxReads
	}
	return &l.writes, l.MaxWrites
}

// Enter counts a request, or reports false if the limit is reached. After true the caller calls Leave.
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

// Leave ends a request that Enter counted.
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
