// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff bounds what is tried again and again. Table has the waits of containers that keep ending and of images
// that cannot be pulled: ten seconds, doubled each time, at most five minutes, and
// forgotten after twice the most without another failure. The most may be less. Failures is a series of failures of any other operation:
// how long to wait, and which of them to log. Neither reads a clock.
package backoff

import (
	"sync"
	"time"
)

// The bounds of a wait.
const (
	Initial = 10 * time.Second
	Max     = 5 * time.Minute
)

// Table holds the waits by key. It is safe for concurrent use.
type Table struct {
	most time.Duration

	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	wait time.Duration
	last time.Time // when the wait was last lengthened
}

// New returns an empty table of waits of at most so long.
func New(most time.Duration) *Table {
	return &Table{most: most, entries: map[string]entry{}}
}

// Until returns when the wait that belongs to a failure at the given time is over,
// and its length; zero for a key that has not failed before.
func (t *Table) Until(key string, failed time.Time) (time.Time, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.entries[key]
	if !ok || failed.Sub(e.last) > 2*t.most {
		return time.Time{}, 0
	}
	return failed.Add(e.wait), e.wait
}

// Next makes the wait longer: something is tried again after a failure at the given time.
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

// Forget drops all keys that the function picks.
func (t *Table) Forget(pick func(key string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.entries {
		if pick(key) {
			delete(t.entries, key)
		}
	}
}
