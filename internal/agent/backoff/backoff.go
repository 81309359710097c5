// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff limits the rate of retries. A Table has the delays of crashing containers and of failed image pulls: ten seconds, doubled
// with each failure up to five minutes or a lower maximum, and reset after twice the maximum without another failure. Failures is a series
// of failures of any other operation: it determines the next delay, and which failures to log. Neither reads a clock.
package backoff

import (
	"sync"
	"time"
)

// The limits of a delay.
const (
	Initial = 10 * time.Second
	Max     = 5 * time.Minute
)

// Table has the delays by key. It is safe for concurrent use.
type Table struct {
	most time.Duration

	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	wait time.Duration
	last time.Time // when the delay was last increased
}

// New returns an empty table with a maximum delay.
func New(most time.Duration) *Table {
	return &Table{most: most, entries: map[string]entry{}}
}

// Until returns when the delay after a failure at the given time ends, and its length; zero for a key without earlier failures.
func (t *Table) Until(key string, failed time.Time) (time.Time, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[key]
	if !ok || failed.Sub(e.last) > 2*t.most {
		return time.Time{}, 0
	}
	return failed.Add(e.wait), e.wait
}

// Next increases the delay, because the operation runs again after a failure at the given time.
func (t *Table) Next(key string, failed time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[key]
	switch {
	case !ok || failed.Sub(e.last) > 2*t.most:
		e.wait = min(Initial, t.most)
	default:
		e.wait = min(2*e.wait, t.most)
	}
	e.last = failed
	t.entries[key] = e
}

// Forget drops all keys for which the function returns true.
func (t *Table) Forget(pick func(key string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.entries {
		if pick(key) {
			delete(t.entries, key)
		}
	}
}
