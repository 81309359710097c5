// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"fmt"
	"slices"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// Fork returns an independent DB with the same records, history and revision. The two share what neither has written since: the nodes
// of the index, the records, and the chunks of the history. It belongs to the writer, and nothing may be staged. It costs the same
// for any number of records; the history costs a few bytes for each 256 of its events.
func Fork(d *DB) *DB {
	d.publishing.Lock()
	defer d.publishing.Unlock()
	f := &DB{
		options: d.options, staged: d.staged.Copy(), revision: d.revision, bytes: d.bytes, expiries: slices.Clone(d.expiries), stale: d.stale,
		history: d.history.fork(), touched: map[*bucket]struct{}{}, closed: make(chan struct{}),
	}
	f.head.Store(&head{index: f.staged.Copy(), revision: d.revision, bytes: d.bytes})
	f.bookmark.Store(d.bookmark.Load())
	return f
}

// ForkAt is Fork at an older revision: the history before it is the same, and that after it is missing. It costs time and memory for
// each key. The error is [store.ErrCompacted] or [store.ErrFuture].
func ForkAt(d *DB, revision int64) (*DB, error) {
	s := d.Snapshot()
	if revision > s.Revision() {
		return nil, store.ErrFuture
	}
	f := New(revision, d.options)
	if err := s.AscendAt(revision, func(r *store.Record) bool { f.Load(r); return true }); err != nil {
		return nil, err
	}
	f.head.Store(&head{index: f.staged.Copy(), revision: revision, bytes: f.bytes})
	return f, nil
}

// RevisionAt returns the newest revision that was published at or before a time, as far as [Options].MarkEvery tells times apart. The error
// is [store.ErrCompacted] if the history begins later, and [store.ErrFuture] if the time is after now.
func RevisionAt(d *DB, at, now time.Time) (int64, error) {
	if at.After(now) {
		return 0, fmt.Errorf("revision at %s: %w", at.Format(time.RFC3339Nano), store.ErrFuture)
	}
	d.publishing.Lock()
	defer d.publishing.Unlock()
	if revision := d.history.published(at); revision > 0 {
		return revision, nil
	}
	return 0, fmt.Errorf("revision at %s: %w", at.Format(time.RFC3339Nano), store.ErrCompacted)
}

// fork returns an independent history with the same events. Only the publisher calls it.
func (h *history) fork() *history {
	f := &history{events: h.events.fork(), marks: h.marks.fork(), bytes: h.bytes}
	f.compacted.Store(h.compacted.Load())
	f.missed.Store(h.missed.Load())
	h.adding.Lock() // the buckets are all that readers add
	defer h.adding.Unlock()
	old := *h.buckets.Load()
	all := make([]bucket, len(old))
	positions := make([]stream[int64], len(old))
	buckets := make(map[string]*bucket, len(old))
	i := 0
	for name, b := range old {
		b.positions.forkInto(&positions[i])
		all[i].positions = &positions[i]
		buckets[name] = &all[i]
		i++
	}
	f.buckets.Store(&buckets)
	return f
}

// fork returns a stream with the same elements. Only the writer calls it.
func (s *stream[T]) fork() *stream[T] {
	f := &stream[T]{}
	s.forkInto(f)
	return f
}

func (s *stream[T]) forkInto(f *stream[T]) {
	w := s.window.Load()
	f.shift, f.borrowed = s.shift, true
	f.window.Store(&window[T]{first: w.first, begin: w.begin, chunks: slices.Clip(w.chunks)})
	f.end.Store(s.end.Load())
}

// own makes the last chunk the stream's own, before its first write after a fork: the other stream writes the same places, perhaps at this
// moment. So only the elements that the stream has are copied.
func (s *stream[T]) own() {
	s.borrowed = false
	w := s.window.Load()
	n := len(w.chunks)
	if n == 0 {
		return
	}
	used := s.end.Load() - w.first - int64(n-1)<<s.shift
	if used == 1<<s.shift { // the other stream writes there no more
		return
	}
	chunks := slices.Clone(w.chunks)
	chunks[n-1] = make([]T, 1<<s.shift)
	copy(chunks[n-1], w.chunks[n-1][:used])
	s.window.Store(&window[T]{first: w.first, begin: w.begin, chunks: chunks})
}
