// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"sync/atomic"
	"time"
)

// Any as [Op.Expect] means that the operation applies whatever the key holds.
const Any int64 = -1

// Record is one key's value at one revision. It is immutable and shared: the engine's index and history, GET, LIST and WATCH all hold the
// same pointer. Do not change the struct's fields or the bytes of Value.
type Record struct {
	Key      string
	Value    []byte
	Revision int64     // revision of the write that made this record
	Created  int64     // revision of the write that created the key, kept over updates
	Expires  time.Time // when the engine deletes the key; zero is never

	view atomic.Pointer[any]
}

// Unopened is the view of a record whose stored value an engine hands on as it is, since it could not decrypt it. Open tries it again, for
// keys may have come back.
type Unopened interface {
	Open() (*Record, error)
}

// View returns the value that [Record.SetView] attached, or nil. The API server keeps an object's decoded form and its encodings there, so
// that all readers share them.
func (r *Record) View() any {
	if p := r.view.Load(); p != nil {
		return *p
	}
	return nil
}

// ReplaceView replaces the view old, nil if there is none, by v, and reports whether it did: another goroutine may have been faster. It
// compares views by ==.
func (r *Record) ReplaceView(old, v any) bool {
	p := r.view.Load()
	if p == nil && old != nil || p != nil && *p != old {
		return false
	}
	return r.view.CompareAndSwap(p, &v)
}

// SetView attaches v, or detaches the view with nil. It never changes the record: a view can be dropped and created again.
func (r *Record) SetView(v any) {
	if v == nil {
		r.view.Store(nil)
		return
	}
	r.view.Store(&v)
}

// Op is one change of a transaction.
type Op struct {
	Key string
	// Value is the new value of the key; nil deletes the key. An empty, non-nil Value is stored. The engine keeps the
	// slice: the caller must not touch it again.
	Value []byte
	// Expect is the Revision that the key's record must have now; 0: the key must not exist; [Any]: no condition.
	Expect int64
	// TTL, when positive, deletes the key after that time. Only with a Value.
	TTL time.Duration
	// Made is called, by engines that support it, with the record that holds Value while no other goroutine can have it: with its revision,
	// before it is durable. It must not block.
	Made func(*Record)
}

// Event is one change of one key, as a watch returns it.
type Event struct {
	Revision int64
	Key      string
	Record   *Record // after the change; nil for a delete
	Previous *Record // before the change; nil for a create
}

// Batch is the result of one [Watcher.Next]: all events of one or more whole revisions, in order. An engine never splits a revision over
// two batches (promise atomic). A batch without events is a bookmark: nothing under the prefix has changed up to and including Revision
// (promise bookmarkable).
type Batch struct {
	Revision int64
	Events   []Event
}

// Range selects the records of [Engine.Range].
type Range struct {
	Prefix string // all keys with this prefix
	After  string // only keys that sort after this one; empty: from the first
	Limit  int    // the maximum number of records; 0: no limit
	// Revision reads at that revision; 0: at the newest. [ErrCompacted] if history no longer reaches back so far, [ErrFuture] if the store
	// has not reached it.
	Revision int64
}

// Page is the result of [Engine.Range].
type Page struct {
	Records   []*Record // in key order; the caller owns the slice, the records are shared
	Revision  int64     // the revision of the read
	Remaining int64     // the number of records of the prefix after the last one here
}

// Engine stores bytes under keys, in revisions. Implementers of a store write one; users hold a [*Store].
//
// The store has one revision, a number that grows by one for each committed transaction and never falls, also over restarts. A new store is
// at revision 1. Keys are non-empty, ordered by their bytes.
//
// An engine makes these promises; the storetest conformance test of the same name tests each:
//
//   - linearizable: operations take effect at one moment between call and return; Get and Range at revision 0 see every commit
//     acknowledged before they began
//   - durable: what Commit acknowledged survives a crash of the process and of the machine (engines that declare it)
//   - ordered: a watcher sees revisions strictly ascending
//   - unique: a watcher sees each change once
//   - atomic: readers and watchers see all operations of a transaction, and its events, or none
//   - reliable: a watcher misses no change of its prefix after the revision it began at
//   - resumable: a watch can begin at any revision that is not compacted, also one from before a restart
//   - bookmarkable: a watcher without events still learns which revision it has reached
//   - compactable: after Compact(r), reads and watches from before r return [ErrCompacted]; those from r on are unchanged
type Engine interface {
	// Commit applies all ops in one revision, or none. If a condition does not hold, it returns a [*ConflictError] with the current record.
	// Deleting an absent key with Expect [Any] changes nothing and creates no event; a transaction that changes nothing creates no revision
	// and returns the current one. The records are the results of the ops, in order (nil for deletes). If ctx ends before the ops are
	// staged, Commit stores nothing and returns ctx's error. From then on Commit waits for the outcome, even if ctx ends: callers release
	// what they have allocated, and inform others, according to that outcome.
	Commit(ctx context.Context, ops ...Op) (int64, []*Record, error)
	// Get returns the key's record, nil if absent, and the revision of the read.
	Get(ctx context.Context, key string) (*Record, int64, error)
	// Range reads the records under a prefix from one consistent snapshot.
	Range(ctx context.Context, r Range) (Page, error)
	// Watch begins after the given revision: the first event is of a later one. [ErrCompacted] if that is too old.
	Watch(ctx context.Context, prefix string, after int64) (Watcher, error)
	// Revision returns the newest committed revision.
	Revision() int64
	// Compacted returns the oldest revision that reads and watches can name.
	Compacted() int64
	// Compact drops history before revision.
	Compact(ctx context.Context, revision int64) error
	// Close waits for commits in progress, ends all watchers with [ErrClosed], and releases the engine's resources.
	Close() error
}

// Watcher is a cursor over the history of a prefix. It keeps no queue: a slow reader costs nothing and delays no other,
// until history is compacted past it and Next returns [ErrCompacted]. It is not safe for concurrent use.
type Watcher interface {
	// Next blocks until there is a change or bookmark after the last batch, or ctx is done.
	Next(ctx context.Context) (Batch, error)
	// Close releases the cursor.
	Close()
}

// History is an [Engine] that knows when it committed its revisions.
type History interface {
	// RevisionAt returns the newest revision that was committed at or before a time, by the engine's clock. The error is [ErrFuture], or
	// [ErrCompacted] for a time before the history.
	RevisionAt(at time.Time) (int64, error)
}

// Point names a state of a store: that of a revision, or else that at a time. The zero value is the newest one.
type Point struct {
	Revision int64
	Time     time.Time
}

// Forker is an [Engine] that can be forked.
type Forker interface {
	// Fork returns an independent engine with the same keys, history and revision. The error is [ErrClosed].
	Fork() (Engine, error)
	// ForkAt is Fork at an older revision, without the history after it. The error is [ErrClosed], [ErrCompacted] or [ErrFuture].
	ForkAt(revision int64) (Engine, error)
}
