// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/mortise-dev/mortise/store/alarm"
)

// Clock is an [alarm.Clock] that stands still until Advance moves it.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers []*timer
}

var _ alarm.Clock = (*Clock)(nil)

type timer struct {
	clock *Clock
	at    time.Time
	f     func()
}

// NewClock returns a clock that stands at the beginning of 2026.
func NewClock() *Clock { return &Clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

// Now implements [alarm.Clock].
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc implements [alarm.Clock].
func (c *Clock) AfterFunc(d time.Duration, f func()) alarm.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &timer{clock: c, at: c.now.Add(d), f: f}
	if d <= 0 {
		go f()
		return t
	}
	c.timers = append(c.timers, t)
	return t
}

// Stop implements [alarm.Timer].
func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	i := slices.Index(t.clock.timers, t)
	if i < 0 {
		return false
	}
	t.clock.timers = slices.Delete(t.clock.timers, i, i+1)
	return true
}

// Advance moves the clock and returns when all due functions have been called.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	for {
		i := slices.IndexFunc(c.timers, func(t *timer) bool { return !t.at.After(c.now) })
		if i < 0 {
			break
		}
		f := c.timers[i].f
		c.timers = slices.Delete(c.timers, i, i+1)
		c.mu.Unlock()
		f()
		c.mu.Lock()
	}
	c.mu.Unlock()
}
