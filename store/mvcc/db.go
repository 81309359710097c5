// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"

	"github.com/mortise-dev/mortise/store"
)

const degree = 24 // of the index: a compromise between search and copy on write

type index = btree.Map[string, *store.Record]

// Options limit what a DB keeps. The zero value is useful.
type Options struct {
	HistoryRevisions int64         // revisions for watches and reads; default 100,000
	HistoryTime      time.Duration // how long it is kept; default 10 minutes
	HistoryBytes     int64         // of superseded records; default 256 MiB
	MaxTransaction   int64         // bytes of keys and values in one transaction; default 8 MiB
	MaxBytes         int64         // bytes of live keys and values; 0: no limit
	MarkEvery        time.Duration // between the times that RevisionAt tells apart; default HistoryTime/64; negative: it knows each revision's
}

// WithDefaults returns o with its zero fields set.
func (o Options) WithDefaults() Options {
	if o.HistoryRevisions == 0 {
		o.HistoryRevisions = 100_000
	}
	if o.HistoryTime == 0 {
		o.HistoryTime = 10 * time.Minute
	}
	if o.HistoryBytes == 0 {
		o.HistoryBytes = 256 << 20
	}
	if o.MaxTransaction == 0 {
		o.MaxTransaction = 8 << 20
	}
	if o.MarkEvery == 0 {
		o.MarkEvery = max(o.HistoryTime/64, time.Millisecond)
	}
	return o
}

// DB is the index and its history. The writer calls Stage, Seal, Rollback, NextExpiry and StageExpired, under one lock of the engine. The
// publisher calls Publish and Trim, concurrently with the writer. All other methods are safe for concurrent use and never wait.
type DB struct {
	options Options

	// Only the writer uses these.
	staged   *index
	revision int64 // newest staged
	bytes    int64 // of staged live records
	events   []store.Event
	expiries expiries
	stale    int // how many of expiries are no longer live

	// Only the publisher uses these.
	publishing sync.Mutex
	touched    map[*bucket]struct{}

	history  *history
	head     atomic.Pointer[head]
	bookmark atomic.Int64 // counts calls of Bookmark
	closed   chan struct{}
	closing  sync.Once
}

// head is the state for readers.
type head struct {
	index    *index
	revision int64
	bytes    int64
}

// Change is a staged transaction.
type Change struct {
	Revision int64           // of the transaction; the newest staged one if it changed nothing
	Records  []*store.Record // for each op, nil for deletes
	Events   []store.Event   // none if it changed nothing
}

// Group is the changes staged between two seals.
type Group struct {
	head   *head
	events []store.Event
}

// Revision returns the newest revision of the group.
func (g *Group) Revision() int64 { return g.head.revision }

// New returns a DB without keys at a revision; the history begins there.
func New(revision int64, options Options) *DB {
	d := &DB{
		options:  options.WithDefaults(),
		staged:   btree.NewMap[string, *store.Record](degree),
		revision: revision,
		history:  newHistory(revision),
		touched:  map[*bucket]struct{}{},
		closed:   make(chan struct{}),
	}
	d.head.Store(&head{index: d.staged.Copy(), revision: revision})
	return d
}

// Load adds a record from before the beginning of the history. Load keys in order, before any other call, and call Seal and Publish
// afterwards.
func (d *DB) Load(r *store.Record) {
	d.staged.Load(r.Key, r)
	d.bytes += size(r)
	d.expect(r, nil)
}

// Stage checks the ops against all staged changes, and stages them. The error is a [*store.ConflictError], or one of [store.ErrInvalid],
// [store.ErrTooLarge], [store.ErrNoSpace]; then nothing is staged.
func (d *DB) Stage(now time.Time, ops []store.Op) (Change, error) {
	current, grown, err := d.examine(ops)
	if err != nil {
		return Change{}, err
	}
	if d.options.MaxBytes > 0 && grown > 0 && d.bytes+grown > d.options.MaxBytes {
		return Change{}, fmt.Errorf("stage %d bytes on %d of %d: %w", grown, d.bytes, d.options.MaxBytes, store.ErrNoSpace)
	}
	change := Change{Revision: d.revision, Records: make([]*store.Record, len(ops))}
	first := len(d.events)
	for i, op := range ops {
		previous := current[i]
		if op.Value == nil {
			if previous != nil {
				d.apply(store.Event{Revision: d.revision + 1, Key: previous.Key, Previous: previous})
			}
			continue
		}
		r := &store.Record{Key: op.Key, Value: op.Value, Revision: d.revision + 1, Created: d.revision + 1}
		if previous != nil {
			r.Key, r.Created = previous.Key, previous.Created
		}
		if op.TTL > 0 {
			r.Expires = now.Add(op.TTL)
		}
		if op.Made != nil {
			op.Made(r)
		}
		change.Records[i] = r
		d.apply(store.Event{Revision: r.Revision, Key: r.Key, Record: r, Previous: previous})
	}
	if len(d.events) > first {
		d.revision++
		change.Revision = d.revision
		change.Events = d.events[first:len(d.events):len(d.events)]
	}
	return change, nil
}

// examine returns the current record for each op, and by how many bytes the ops grow the store.
func (d *DB) examine(ops []store.Op) (current []*store.Record, grown int64, err error) {
	var small [4]*store.Record
	current = small[:0]
	var total int64
	for i, op := range ops {
		switch {
		case op.Key == "":
			return nil, 0, fmt.Errorf("stage op %d: %w: empty key", i, store.ErrInvalid)
		case op.Expect < store.Any:
			return nil, 0, fmt.Errorf("stage key %q: %w: expects revision %d", op.Key, store.ErrInvalid, op.Expect)
		case op.TTL < 0 || op.TTL > 0 && op.Value == nil:
			return nil, 0, fmt.Errorf("stage key %q: %w: ttl %v", op.Key, store.ErrInvalid, op.TTL)
		case twice(ops, i):
			return nil, 0, fmt.Errorf("stage key %q: %w: twice in a transaction", op.Key, store.ErrInvalid)
		}
		total += int64(len(op.Key) + len(op.Value))
		r, _ := d.staged.Get(op.Key)
		if op.Expect != store.Any && (r == nil && op.Expect != 0 || r != nil && op.Expect != r.Revision) {
			return nil, 0, &store.ConflictError{Key: op.Key, Expect: op.Expect, Current: r}
		}
		if op.Value != nil {
			grown += int64(len(op.Key) + len(op.Value))
		}
		if r != nil {
			grown -= size(r)
		}
		current = append(current, r)
	}
	if total > d.options.MaxTransaction {
		return nil, 0, fmt.Errorf("stage %d bytes, at most %d: %w", total, d.options.MaxTransaction, store.ErrTooLarge)
	}
	return current, grown, nil
}

// twice reports whether the key of op i is that of an earlier one.
func twice(ops []store.Op, i int) bool {
	if i < 16 {
		for j := range i {
			if ops[j].Key == ops[i].Key {
				return true
			}
		}
		return false
	}
	if i < len(ops)-1 {
		return false // the last op compares with all
	}
	seen := make(map[string]struct{}, len(ops))
	for _, op := range ops {
		if _, ok := seen[op.Key]; ok {
			return true
		}
		seen[op.Key] = struct{}{}
	}
	return false
}

// Replay stages a change that was committed before, with its revision and expiry. It sets Created; the caller keeps the slice. The caller
// has checked that the revision is the next one.
func (d *DB) Replay(revision int64, events []store.Event) {
	for _, e := range events {
		e.Revision = revision
		if e.Record == nil {
			e.Previous, _ = d.staged.Delete(e.Key)
			if e.Previous == nil {
				continue
			}
		} else {
			e.Previous, _ = d.staged.Set(e.Key, e.Record)
			e.Record.Revision, e.Record.Created = revision, revision
			d.bytes += size(e.Record)
		}
		d.expect(e.Record, e.Previous)
		if e.Previous != nil {
			d.bytes -= size(e.Previous)
			if e.Record != nil {
				e.Record.Created = e.Previous.Created
			}
		}
		d.events = append(d.events, e)
	}
	d.revision = revision
}

// apply puts one event into the staged index.
func (d *DB) apply(e store.Event) {
	if e.Previous != nil {
		d.bytes -= size(e.Previous)
	}
	if e.Record == nil {
		d.staged.Delete(e.Key)
	} else {
		d.staged.Set(e.Key, e.Record)
		d.bytes += size(e.Record)
	}
	d.expect(e.Record, e.Previous)
	d.events = append(d.events, e)
}

// Staged returns the newest staged revision.
func (d *DB) Staged() int64 { return d.revision }

// Seal ends a group: all changes staged since the last Seal.
func (d *DB) Seal() *Group {
	g := &Group{head: &head{index: d.staged.Copy(), revision: d.revision, bytes: d.bytes}, events: d.events}
	d.events = nil
	return g
}

// Rollback drops all unpublished changes. No sealed group may be in progress.
func (d *DB) Rollback() {
	h := d.head.Load()
	d.staged, d.revision, d.bytes, d.events, d.expiries = copyOf(h.index), h.revision, h.bytes, nil, nil
	d.stale = 0
	d.staged.Scan(func(_ string, r *store.Record) bool {
		d.expect(r, nil)
		return true
	})
}

// Reset replaces all records by those of a revision, in key order, and drops the history before it: watchers that are behind it get
// [store.ErrCompacted]. It is for an engine that has missed changes made elsewhere. It belongs to the writer and the publisher alike, and
// nothing may be staged. The revision must not be below the published one.
func Reset(d *DB, now time.Time, revision int64, records []*store.Record) {
	d.staged, d.revision, d.bytes, d.events, d.expiries, d.stale = btree.NewMap[string, *store.Record](degree), revision, 0, nil, nil, 0
	for _, r := range records {
		d.Load(r)
	}
	d.publishing.Lock()
	d.history.missed.Store(revision) // before the head, so that no watcher takes the new one for a bookmark
	d.history.trim(revision)
	d.publishing.Unlock()
	d.Publish(now, d.Seal())
	d.Bookmark()
}

// copyOf returns an independent index. The library's Copy writes to the original too, which readers may be reading.
func copyOf(from *index) *index {
	to := btree.NewMap[string, *store.Record](degree)
	from.Scan(func(key string, r *store.Record) bool {
		to.Load(key, r)
		return true
	})
	return to
}

// Publish makes a group visible and wakes waiting watchers. Groups must come in the order of their seals.
func (d *DB) Publish(now time.Time, g *Group) {
	d.publishing.Lock()
	defer d.publishing.Unlock()
	if g.head.revision < d.head.Load().revision {
		panic(fmt.Sprintf("mvcc: publish of revision %d after %d", g.head.revision, d.head.Load().revision))
	}
	d.history.append(g.events, d.touched)
	d.head.Store(g.head)
	if len(g.events) > 0 {
		d.history.everyone.wake()
	}
	for b := range d.touched {
		b.topic.wake()
	}
	clear(d.touched)
	d.bound(now)
}

// Note sets when a replayed revision was first published. It belongs to the publisher.
func (d *DB) Note(at time.Time, revision int64) {
	d.history.note(at, revision, d.options.MarkEvery)
}

// bound drops the history beyond the options' limits.
func (d *DB) bound(now time.Time) {
	h, o := d.history, d.options
	revision := d.head.Load().revision
	h.note(now, revision, o.MarkEvery)
	keep := h.compacted.Load()
	// In steps of a sixteenth, so that trimming costs little.
	if revision-keep > o.HistoryRevisions+o.HistoryRevisions/16 {
		keep = revision - o.HistoryRevisions
	}
	keep = max(keep, h.published(now.Add(-o.HistoryTime)))
	if h.bytes > o.HistoryBytes+o.HistoryBytes/16 {
		keep = max(keep, h.shrink(o.HistoryBytes))
	}
	h.trim(keep)
}

// Compact drops history before revision. [store.ErrFuture] if the store has not reached it.
func (d *DB) Compact(revision int64) error {
	d.publishing.Lock()
	defer d.publishing.Unlock()
	if head := d.head.Load().revision; revision > head {
		return fmt.Errorf("compact to revision %d of %d: %w", revision, head, store.ErrFuture)
	}
	d.history.trim(revision)
	return nil
}

// Bookmark wakes all waiting watchers; those that are behind return a bookmark.
func (d *DB) Bookmark() {
	d.bookmark.Add(1)
	d.history.everyone.wake()
	for _, b := range *d.history.buckets.Load() {
		b.topic.wake()
	}
}

// Close ends all watchers and refuses further reads.
func (d *DB) Close() { d.closing.Do(func() { close(d.closed) }) }

// Closed returns a channel that Close closes.
func (d *DB) Closed() <-chan struct{} { return d.closed }
