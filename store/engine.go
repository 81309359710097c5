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

// Record is one key's value at one revision. It is immutable and shared: the engine's index and history, GET, LIST and
// WATCH all hold the same pointer. Neither the struct's fields nor the bytes of Value may be changed by anyone.
type Record struct {
	Key      string
	Value    []byte
	Revision int64     // revision of the write that made this record
	Created  int64     // revision of the write that created the key, kept over updates
	Expires  time.Time // when the engine deletes the key; zero is never

	view atomic.Pointer[any]
}

// View returns what the layer above attached with [Record.SetView], or nil. The API server keeps an object's decoded
// form and its encodings there, so that they are made once for all readers.
func (r *Record) View() any {
	if p := r.view.Load(); p != nil {
		return *p
	}
	return nil
}

// ReplaceView replaces the view old, nil if there is none, by v, and reports whether it did: another goroutine may have
// been faster. Views are compared by ==.
func (r *Record) ReplaceView(old, v any) bool {
	p := r.view.Load()
	if p == nil && old != nil || p != nil && *p != old {
		return false
	}
	return r.view.CompareAndSwap(p, &v)
}

// SetView attaches v, or detaches with nil. It never changes the record: a view can be dropped and made again.
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
	// Made is called, by engines that support it, with the record that holds Value while no other goroutine can have it:
	// with its revision, before it is durable. It must not wait for anything.
	Made func(*Record)
}

// Event is one change of one key, as a watch sees it.
type Event struct {
	Revision int64
	Key      string
	Record   *Record // after the change; nil for a delete
	Previous *Record // before the change; nil for a create
}

// Batch is the result of one [Watcher.Next]: all events of one or more whole revisions, in order. No revision is ever split
// over two batches (promise atomic). A batch without events is a bookmark: nothing under the prefix has changed up to and
// with Revision (promise bookmarkable).
type Batch struct {
	Revision int64
	Events   []Event
}

// Range selects the records of [Engine.Range].
type Range struct {
	Prefix string // all keys that begin so
	After  string // only keys that sort after this one; empty: from the first
	Limit  int    // at most so many records; 0: all
	// Revision reads as of that revision; 0: as of now. [ErrCompacted] if history no longer reaches back so far,
	// [ErrFuture] if the store has not got there.
	Revision int64
}

// Page is the result of [Engine.Range].
type Page struct {
	Records   []*Record // in key order; the slice is the caller's, the records are shared
	Revision  int64     // as of which the page was read
	Remaining int64     // how many records of the prefix sort after the last one here
}

// Engine stores bytes under keys, in revisions. Implementers of a store write one; users hold a [*Store].
//
// The store has one revision, a number that grows by one for each committed transaction and never falls, also over
// restarts. A new store is at revision 1. Keys are non-empty, ordered by their bytes.
//
// An engine makes these promises, each proved by the storetest conformance test of its name:
//
//   - linearizable: operations take effect at one moment between call and return; Get and Range at revision 0 see every commit
//     acknowledged before they began
//   - durable: what Commit acknowledged survives a crash of the process and of the machine (engines that declare it)
//   - ordered: a watcher sees revisions strictly ascending
//   - unique: a watcher sees each change once
//   - atomic: the operations of a transaction, and its events, are seen together or not at all
//   - reliable: a watcher misses no change of its prefix after the revision it began at
//   - resumable: a watch can begin at any revision that is not compacted, also one from before a restart
//   - bookmarkable: a watcher with nothing to see still learns how far it has seen
//   - compactable: after Compact(r) reads and watches from before r answer [ErrCompacted]; those from r on are unchanged
type Engine interface {
	// Commit applies all ops in one revision, or none. A condition that does not hold answers a [*ConflictError] that
	// carries the current record. Deleting an absent key with Expect [Any] changes nothing and makes no event; a
	// transaction that changes nothing makes no revision and answers the current one. The records are those that the
	// ops made, in their order (nil for deletes). When ctx ends before the ops are staged, nothing is stored and the
	// answer is ctx's error. From then on Commit waits for the outcome, whatever becomes of ctx: callers release what
	// they have allocated, and inform others, according to that outcome.
	Commit(ctx context.Context, ops ...Op) (int64, []*Record, error)
	// Get returns the key's record, nil if absent, and the revision as of which that is true.
	Get(ctx context.Context, key string) (*Record, int64, error)
	// Range reads the records under a prefix from one consistent snapshot.
	Range(ctx context.Context, r Range) (Page, error)
	// Watch begins after the given revision: the first event is of a later one. [ErrCompacted] if that is too old.
	Watch(ctx context.Context, prefix string, after int64) (Watcher, error)
	// Revision is the newest committed revision.
	Revision() int64
	// Compacted is the oldest revision that can still be read and resumed after.
	Compacted() int64
	// Compact forgets history before revision.
	Compact(ctx context.Context, revision int64) error
	// Close waits for commits under way, ends all watchers with [ErrClosed], and releases what the engine holds.
	Close() error
}

// Watcher is a cursor over the history of a prefix. It keeps no queue: a slow reader costs nothing and delays no other,
// until history is compacted past it and Next returns [ErrCompacted]. It is not safe for concurrent use.
type Watcher interface {
	// Next blocks until there is something after the last batch, or ctx is done.
	Next(ctx context.Context) (Batch, error)
	// Close releases the cursor.
	Close()
}
