// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// ErrOpen is returned, wrapped with the extension's name and its newest error, while the breaker keeps calls back.
var ErrOpen = errors.New("extension is not called while it keeps failing")

// Ref names one extension: this webhook, that driver.
type Ref struct {
	Point Point
	Name  string
}

// Policy is how an extension is called. The zero value has no deadline of its own and no breaker.
type Policy struct {
	Timeout time.Duration // of one call; 0: only the caller's
	// After so many failures in a row the breaker opens for Pause; then one call is let through to try. 0: never.
	Failures int
	Pause    time.Duration
}

// Entry is what the ledger knows of one extension.
type Entry struct {
	Ref
	Calls, Failures, Refused int64
	Total, Longest           time.Duration
	LastError                string
	LastFailure              time.Time
	Open                     bool // the breaker keeps calls back
}

// Ledger makes every call out to an extension, and so knows them all.
type Ledger struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	entries map[Ref]*account
}

// account is an entry with its breaker's state.
type account struct {
	Entry
	inARow int
	until  time.Time
	trying bool
}

// NewLedger returns an empty ledger that reads the time from c.
func NewLedger(c clock.PassiveClock) *Ledger {
	return &Ledger{clock: c, entries: map[Ref]*account{}}
}

// Call calls f on behalf of ref, under the policy. The error is f's, or wraps [ErrOpen], and names the extension.
func (l *Ledger) Call(ctx context.Context, ref Ref, p Policy, f func(ctx context.Context) error) error {
	if err := l.begin(ref, p); err != nil {
		return err
	}
	if p.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.Timeout)
		defer cancel()
	}
	start := l.clock.Now()
	finished := false
	defer func() {
		if !finished { // f panicked: the call failed, and the panic goes on
			l.end(ref, p, l.clock.Since(start), errors.New("panicked"))
		}
	}()
	err := f(ctx)
	finished = true
	l.end(ref, p, l.clock.Since(start), err)
	if err != nil {
		return fmt.Errorf("call %s %q: %w", ref.Point, ref.Name, err)
	}
	return nil
}

// begin asks the breaker.
func (l *Ledger) begin(ref Ref, p Policy) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.entries[ref]
	if a == nil {
		a = &account{Entry: Entry{Ref: ref}}
		l.entries[ref] = a
	}
	if a.Open && p.Failures > 0 {
		if a.trying || l.clock.Now().Before(a.until) {
			a.Refused++
			return fmt.Errorf("call %s %q: %w: %s", ref.Point, ref.Name, ErrOpen, a.LastError)
		}
		a.trying = true
	}
	return nil
}

// end books the call.
func (l *Ledger) end(ref Ref, p Policy, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.entries[ref]
	a.Calls++
	a.Total += took
	a.Longest = max(a.Longest, took)
	a.trying = false
	if err == nil {
		a.inARow, a.Open = 0, false
		return
	}
	a.Failures++
	a.inARow++
	a.LastError, a.LastFailure = err.Error(), l.clock.Now()
	if p.Failures > 0 && a.inARow >= p.Failures {
		a.Open, a.until = true, l.clock.Now().Add(p.Pause)
	}
}

// Snapshot returns a copy of all entries, sorted by point and name.
func (l *Ledger) Snapshot() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Entry, 0, len(l.entries))
	for _, a := range l.entries {
		out = append(out, a.Entry)
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Point, b.Point), cmp.Compare(a.Name, b.Name))
	})
	return out
}
