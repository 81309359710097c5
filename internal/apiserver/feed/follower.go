// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/store"
)

// follower is a [Follower] at work. Its goroutine is the only one that calls Load and Apply once the feed has started.
type follower struct {
	Follower
	feed *Feed

	mu      sync.Mutex
	idle    bool          // it is not needed yet
	waiting []queued      // changes that were not applied yet
	missed  bool          // a snapshot must be loaded: changes were lost
	woken   chan struct{} // holds one when there is something to do
	handed  int64         // all changes up to and with this revision have been queued
	busy    bool          // the goroutine is at work
	applied int64         // all changes up to and with this revision are applied
	pending []pending     // who waits for a revision
	failing map[Key]*failure
	unread  []Key // as Unreadable has been called with; used by the goroutine alone
	broken  error // why the last snapshot could not be loaded

	loaded int64 // revision of the last snapshot; used by the goroutine alone
	took   prometheus.Observer
}

// queued is a change that waits for a follower.
type queued struct {
	*Change
	record    *store.Record // of a change that could not be decoded
	undecoded error
}

// pending is closed when a revision is applied.
type pending struct {
	revision int64
	done     chan struct{}
}

// failure is a change that could not be applied.
type failure struct {
	queued
	err    error
	unread bool // the follower knows no earlier state of the object
}

// concerned reports whether the follower is to be given a change. An idle one loads a snapshot when it is needed.
func (f *follower) concerned(c *Change) bool {
	if f.Namespace != "" && c.Namespace != "" && c.Namespace != f.Namespace {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.idle
}

// queue adds a change; handed is called after the last one of a batch.
func (f *follower) queue(q queued) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.idle, f.missed: // it is in the snapshot that is to be loaded
	case len(f.waiting) >= maxQueued:
		f.waiting, f.missed = nil, true
	default:
		f.waiting = append(f.waiting, q)
	}
}

// upTo says that all changes up to and with a revision have been queued, and starts the goroutine if there are any.
func (f *follower) upTo(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handed = max(f.handed, revision)
	f.settle()
}

// reload has a new snapshot loaded.
func (f *follower) reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.idle {
		return
	}
	f.waiting, f.missed = nil, true
	f.settle()
}

// wake has the first snapshot loaded.
func (f *follower) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.idle, f.missed = false, true // from here on changes are queued, and the snapshot is newer than those before
	f.settle()
}

// settle starts the goroutine if there is something to do; if there is not, everything is applied. The caller holds mu.
func (f *follower) settle() {
	switch {
	case len(f.waiting) > 0 || f.missed:
		select {
		case f.woken <- struct{}{}:
		default:
		}
	case !f.busy:
		f.reach(f.handed)
	}
}

// run applies changes until ctx ends.
func (f *follower) run(ctx context.Context) {
	if f.Wanted != nil {
		select {
		case <-ctx.Done():
			return
		case <-f.Wanted:
		}
		f.wake()
	}
	wait := firstRetry
	retry := time.NewTimer(wait)
	defer retry.Stop()
	if f.check() == nil { // all objects of the snapshot could be applied
		wait = 0
		retry.Stop()
	}
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-f.woken:
		case <-retry.C:
			again = true
		}
		f.mu.Lock()
		changes, missed := f.waiting, f.missed || again && f.broken != nil
		f.busy = true
		f.waiting, f.missed = nil, false // from here on changes are queued again, and the snapshot is newer than those that were lost
		f.mu.Unlock()
		switch {
		case missed:
			_ = f.load(ctx, f.feed.opts.Source.Revision()) // what went wrong is kept for the check
		case again:
			f.applyAgain(ctx)
		}
		f.applyAll(ctx, changes)
		f.mu.Lock()
		f.busy = false
		f.settle()
		f.mu.Unlock()
		if f.check() == nil {
			wait = 0
			retry.Stop()
		} else if again || wait == 0 {
			wait = min(max(2*wait, firstRetry), lastRetry)
			retry.Reset(wait)
		}
	}
}

// load replaces what the follower holds with a snapshot of the revision.
func (f *follower) load(ctx context.Context, revision int64) error {
	s := &Snapshot{Revision: revision, feed: f.feed}
	err := f.Load(context.WithValue(ctx, applying{}, true), s)
	f.mu.Lock()
	f.broken = err
	clear(f.failing)
	for key, failed := range s.failed {
		f.failing[key] = failed
	}
	f.mu.Unlock()
	if err != nil {
		f.feed.opts.Log.ErrorContext(ctx, "Could not load the objects of a follower", "follower", f.Name, "error", err)
	}
	f.tellUnread()
	f.loaded = revision
	f.reached(revision) // also of what could not be loaded: it is tried again
	return err
}

// applyAll applies changes in their order. A revision is reached with its last one.
func (f *follower) applyAll(ctx context.Context, changes []queued) {
	for i, q := range changes {
		if q.Revision <= f.loaded {
			continue // the snapshot had it
		}
		f.apply(ctx, q)
		if i+1 == len(changes) || changes[i+1].Revision > q.Revision {
			f.reached(q.Revision)
		}
	}
}

// applyAgain tries once more what could not be applied.
func (f *follower) applyAgain(ctx context.Context) {
	f.mu.Lock()
	again := make([]queued, 0, len(f.failing))
	for _, failed := range f.failing {
		again = append(again, failed.queued)
	}
	f.mu.Unlock()
	slices.SortFunc(again, func(a, b queued) int { return int(a.Revision - b.Revision) })
	for _, q := range again {
		f.apply(ctx, q)
	}
}

func (f *follower) apply(ctx context.Context, q queued) {
	begun := time.Now()
	err := q.undecoded
	if err != nil {
		if k := f.feed.opts.Kind(q.Resource); k != nil { // keys for encrypted objects may have come back
			if cached, again := k.Cached(q.record); again == nil {
				change := *q.Change
				change.Object = cached.Hub
				q, err = queued{Change: &change}, nil
			}
		}
	}
	if err == nil {
		err = f.Apply(context.WithValue(ctx, applying{}, true), q.Change)
	}
	f.took.Observe(time.Since(begun).Seconds())
	key := q.key()
	f.mu.Lock()
	before := f.failing[key]
	if err == nil {
		delete(f.failing, key)
	} else {
		f.failing[key] = &failure{q, err, before != nil && before.unread}
	}
	f.mu.Unlock()
	if before != nil {
		f.tellUnread()
	}
	switch {
	case ctx.Err() != nil:
	case err != nil && before == nil:
		f.feed.opts.Log.ErrorContext(ctx, "Could not apply a change to a follower, retrying", "follower", f.Name, "object", key,
			"revision", q.Revision, "error", err)
	case err == nil && before != nil:
		f.feed.opts.Log.InfoContext(ctx, "Applied a change to a follower after a failure", "follower", f.Name, "object", key,
			"revision", q.Revision)
	}
}

// tellUnread calls Unreadable if there is another list of objects for it.
func (f *follower) tellUnread() {
	if f.Unreadable == nil {
		return
	}
	var unread []Key
	f.mu.Lock()
	for key, failed := range f.failing {
		if failed.unread {
			unread = append(unread, key)
		}
	}
	f.mu.Unlock()
	slices.SortFunc(unread, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	if !slices.Equal(unread, f.unread) {
		f.unread = unread
		f.Unreadable(unread)
	}
}

// reached says that all changes up to and with a revision are applied.
func (f *follower) reached(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reach(revision)
}

// reach is reached for callers that hold mu.
func (f *follower) reach(revision int64) {
	if revision <= f.applied {
		return
	}
	f.applied = revision
	f.pending = slices.DeleteFunc(f.pending, func(p pending) bool {
		if p.revision <= revision {
			close(p.done)
			return true
		}
		return false
	})
}

// closedChannel is what has been reached long ago.
var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// at returns a channel that is closed when the revision is applied.
func (f *follower) at(revision int64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision <= f.applied || f.idle {
		return closedChannel
	}
	p := pending{revision, make(chan struct{})}
	f.pending = append(f.pending, p)
	return p.done
}

// check returns what could not be applied.
func (f *follower) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return fmt.Errorf("load: %w", f.broken)
	}
	if len(f.failing) == 0 {
		return nil
	}
	keys := make([]Key, 0, len(f.failing))
	for key := range f.failing {
		keys = append(keys, key)
	}
	first := slices.MinFunc(keys, func(a, b Key) int { return int(f.failing[a].Revision - f.failing[b].Revision) })
	return fmt.Errorf("%d not applied, the oldest %s: %w", len(keys), first, f.failing[first].err)
}
