// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"sync/atomic"
	"time"
)

// peaks count what reads and what writes, running and waiting.
type peaks struct {
	running [2]counter // reads, writes
	waiting [2]atomic.Int64
}

func index(writes bool) int {
	if writes {
		return 1
	}
	return 0
}

func (p *peaks) run(writes bool, by int64, now time.Time) {
	c := &p.running[index(writes)]
	if n := c.now.Add(by); by > 0 {
		c.reach(now, n)
	}
}

func (p *peaks) wait(writes bool, by int64) { p.waiting[index(writes)].Add(by) }

// Peaks are the most requests that ran at once in the last second.
func (c *Controller) Peaks(now time.Time) (reads, writes int64) {
	return c.peaks.running[0].at(now), c.peaks.running[1].at(now)
}

// Waiting are the requests that wait.
func (c *Controller) Waiting() (reads, writes int64) {
	return c.peaks.waiting[0].Load(), c.peaks.waiting[1].Load()
}
