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

// Policy is how an extension is called. The zero value calls once, has no deadline of its own and no breaker.
type Policy struct {
	Timeout time.Duration // of one call; 0: only the caller's
	// After so many failures in a row the breaker opens for Pause; then one call is let through to try. 0: never.
	Failures int
	Pause    time.Duration
	// Excused reports failures that are not the extension's fault, such as a caller that left: the ledger counts them, but
	// they do not open the breaker. Nil: there are none. Turned is called when the breaker opens and when it closes.
	Excused func(error) bool
	Turned  func(open bool)
	// Retries are further calls after one that failed and that Retry wants again (nil: any failure), the first after Backoff,
	// each next after Factor (0: 1) times as long. Each is booked as a call.
	Retries int
	Backoff time.Duration
	Factor  float64
	Retry   func(error) bool
}

// State is how an extension is doing.
type State string

// The states.
const (
	Unused  State = "never called"
	OK      State = "ok"
	Failing State = "failing" // the newest call failed
	Open    State = "open"    // the breaker keeps calls back
)

// Entry is what the ledger knows of one extension.
type Entry struct {
	Ref
	Where                    string // the object, file or flag that names it; empty: unknown
	State                    State
	Calls, Failures, Refused int64
	Total, Longest           time.Duration
	P50, P99                 time.Duration // of the newest calls, within a fifth
	LastError                string
	LastFailure              time.Time
	Certificate              time.Time // when the serving certificate ends that was seen at the newest TLS handshake; zero: none was
	Latency                  []int64   // how many calls took how long: cumulative, by the bounds of [Bounds]
	Waits                    int       // how many objects wait for it; Waiting are the oldest of them
	Waiting                  []Waiting
}

// Ledger makes every call out to an extension, and so knows them all.
type Ledger struct {
	clock clock.Clock

	mu      sync.RWMutex // of the maps and the list alone
	entries map[Ref]*account
	gone    map[Ref]bool // what was unregistered: a call that comes late is booked nowhere
	waits   []func() map[Ref][]Waiting

	spans spans
}

// NewLedger returns an empty ledger that reads the time from c.
func NewLedger(c clock.Clock) *Ledger {
	return &Ledger{clock: c, entries: map[Ref]*account{}, gone: map[Ref]bool{}}
}

// Register lists an extension from now on, called or not. where names what configures it: an object
// ("CustomResourceDefinition/widgets.example.com"), a file, a flag. Registering it again only says anew where.
func (l *Ledger) Register(ref Ref, where string) {
	l.mu.Lock()
	delete(l.gone, ref)
	l.mu.Unlock()
	a := l.account(ref)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entry.Where = where
}

// Unregister forgets an extension. A call that is under way, or that comes before the extension is registered again, ends as it would
// and is booked nowhere.
func (l *Ledger) Unregister(ref Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(ref)
}

// maxGone bounds how many extensions are known to be gone.
const maxGone = 4096

func (l *Ledger) forget(ref Ref) {
	if _, listed := l.entries[ref]; !listed {
		return // a call that is late is late for an extension that was listed
	}
	delete(l.entries, ref)
	if len(l.gone) == maxGone {
		clear(l.gone) // those are old, and are not called any more
	}
	l.gone[ref] = true
}

// Forgive closes the breaker of an extension for which things have changed: the next call is made.
func (l *Ledger) Forgive(ref Ref) {
	l.mu.RLock()
	a := l.entries[ref]
	l.mu.RUnlock()
	if a != nil {
		a.forgive()
	}
}

// RegisterAll makes the extensions of a point exactly those that are named, each with what configures it. Those that stay keep
// what is known of them.
func (l *Ledger) RegisterAll(point Point, where map[string]string) {
	l.mu.Lock()
	for ref := range l.entries {
		if _, stays := where[ref.Name]; ref.Point == point && !stays {
			l.forget(ref)
		}
	}
	l.mu.Unlock()
	for name, w := range where {
		l.Register(Ref{point, name}, w)
	}
}

// account finds an extension's account, or opens it. That of an extension that is gone is not kept.
func (l *Ledger) account(ref Ref) *account {
	l.mu.RLock()
	a := l.entries[ref]
	l.mu.RUnlock()
	if a != nil {
		return a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if a = l.entries[ref]; a == nil {
		a = &account{entry: Entry{Ref: ref}}
		if !l.gone[ref] {
			l.entries[ref] = a
		}
	}
	return a
}

// Call calls f on behalf of ref, under the policy. The error is f's, or wraps [ErrOpen], and names the extension.
func (l *Ledger) Call(ctx context.Context, ref Ref, p Policy, f func(ctx context.Context) error) error {
	a := l.account(ref)
	ctx = a.watched(ctx)
	wait := p.Backoff
	for try := 0; ; try++ {
		err := l.once(ctx, ref, a, p, f)
		if err == nil {
			return nil
		}
		if try >= p.Retries || errors.Is(err, ErrOpen) || p.Retry != nil && !p.Retry(err) || !l.pause(ctx, wait) {
			return fmt.Errorf("call %s %q: %w", ref.Point, ref.Name, err)
		}
		wait = time.Duration(float64(wait) * cmp.Or(p.Factor, 1))
	}
}

// once is one try.
func (l *Ledger) once(ctx context.Context, ref Ref, a *account, p Policy, f func(ctx context.Context) error) error {
	trial, err := a.begin(p, l.clock)
	if err != nil {
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
			a.end(p, l.clock, l.clock.Since(start), trial, errors.New("panicked"))
		}
	}()
	err = f(ctx)
	finished = true
	took := l.clock.Since(start)
	a.end(p, l.clock, took, trial, err)
	l.spans.keep(ctx, ref, start, took, err)
	return err
}

// pause waits; false: the caller did not want to.
func (l *Ledger) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := l.clock.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// Snapshot returns a copy of all entries, sorted by point, in the catalogue's order, and name.
func (l *Ledger) Snapshot() []Entry {
	l.mu.RLock()
	out := make([]Entry, 0, len(l.entries))
	for _, a := range l.entries {
		out = append(out, a.snapshot())
	}
	asked := l.waits
	l.mu.RUnlock()
	out = waiting(out, asked)
	order := make(map[Point]int, len(out))
	for i, d := range Points() {
		order[d.Point] = i
	}
	slices.SortFunc(out, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(order[a.Point], order[b.Point]), cmp.Compare(a.Point, b.Point), cmp.Compare(a.Name, b.Name))
	})
	return out
}
