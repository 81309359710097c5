// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Store is an engine with the everyday forms of its operations and the optional abilities of engines.
type Store struct {
	engine Engine
	lags   bool // the engine is a StaleReader
}

// New wraps an engine. Closing the store closes the engine.
func New(engine Engine) *Store {
	_, lags := Ability[StaleReader](engine)
	return &Store{engine: engine, lags: lags}
}

// Engine returns the engine given to [New].
func (s *Store) Engine() Engine { return s.engine }

// Get returns the key's record, nil if absent, and the revision of the read.
func (s *Store) Get(ctx context.Context, key string) (*Record, int64, error) {
	return s.engine.Get(ctx, key)
}

// List reads all records under a prefix at the newest revision.
func (s *Store) List(ctx context.Context, prefix string) (Page, error) {
	return s.engine.Range(ctx, Range{Prefix: prefix})
}

// Range reads a page of the records under a prefix, at the newest or an older revision.
func (s *Store) Range(ctx context.Context, r Range) (Page, error) { return s.engine.Range(ctx, r) }

// Create stores a key that must not exist; if it does, a [*ConflictError] carries its record. With a positive ttl the engine deletes the
// key after that time.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (*Record, error) {
	return s.Put(ctx, Op{Key: key, Value: value, TTL: ttl})
}

// Update replaces the value of a key whose record is at revision expect; a [*ConflictError] has the current record, nil if
// there is none. Expect may be [Any], which also creates. The key's earlier ttl ends; a positive ttl starts again.
func (s *Store) Update(ctx context.Context, key string, expect int64, value []byte, ttl time.Duration) (*Record, error) {
	return s.Put(ctx, Op{Key: key, Value: value, Expect: expect, TTL: ttl})
}

// Put is Create or Update, depending on the operation.
func (s *Store) Put(ctx context.Context, op Op) (*Record, error) {
	if op.Value == nil {
		op.Value = []byte{}
	}
	_, records, err := s.engine.Commit(ctx, op)
	if err != nil {
		return nil, err
	}
	return records[0], nil
}

// Delete removes a key whose record is at revision expect, or at [Any], and returns the revision of the deletion. With
// [Any], an absent key is no error and makes no revision.
func (s *Store) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	revision, _, err := s.engine.Commit(ctx, Op{Key: key, Expect: expect})
	return revision, err
}

// Commit applies all ops in one revision, or none; see [Engine].
func (s *Store) Commit(ctx context.Context, ops ...Op) (int64, []*Record, error) {
	return s.engine.Commit(ctx, ops...)
}

// Watch begins after the given revision; see [Engine].
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (Watcher, error) {
	return s.engine.Watch(ctx, prefix, after)
}

// Revision returns the newest committed revision.
func (s *Store) Revision() int64 { return s.engine.Revision() }

// Compacted returns the oldest revision that reads and watches can name.
func (s *Store) Compacted() int64 { return s.engine.Compacted() }

// Compact drops history before revision.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	return s.engine.Compact(ctx, revision)
}

// Close closes the engine.
func (s *Store) Close() error { return s.engine.Close() }

// Optional abilities. An engine with an ability implements the interface; a decorator exposes the abilities of the engine under it by
// implementing [Unwrapper].
type (
	// Checker verifies that the stored data equals the written data.
	Checker interface {
		Check(ctx context.Context) error
	}
	// Backuper writes a consistent copy of the current state, which can be restored into a new store.
	Backuper interface {
		Backup(ctx context.Context, w io.Writer) (revision int64, err error)
	}
	// RevisionBackuper is a Backuper that also writes older states. The error of BackupAt is [ErrCompacted] for a state before the history,
	// and [ErrFuture] for one that the store has not reached.
	RevisionBackuper interface {
		BackupAt(ctx context.Context, w io.Writer, state Point) (revision int64, err error)
	}
	// Sizer returns the size of the store.
	Sizer interface {
		Size() Size
	}
	// Bookmarker makes every waiting watcher that is behind return immediately, at least with a bookmark.
	Bookmarker interface {
		Bookmark()
	}
	// Staler reports whether a value would be stored as different bytes if it were written again, for example with another key.
	Staler interface {
		Stale(ctx context.Context, key string, revision int64) bool
	}
	// Prober reports whether the store answers: an engine whose data another process keeps can lose it. Probe returns nil when a read of the
	// newest state succeeds, and why it does not when it fails or ctx ends.
	Prober interface {
		Probe(ctx context.Context) error
	}
	// Compactor removes old history together with the other processes that use the same data. Each calls CompactShared once in an interval
	// of its own; the first of an interval drops the history before the revision that its own last call returned, and tells the others.
	Compactor interface {
		CompactShared(ctx context.Context) error
	}
	// Unwrapper is a decorator that exposes the abilities of the engine under it.
	Unwrapper interface {
		Unwrap() Engine
	}
)

// Decorator is embedded in engines that decorate another one: they override the operations that they change.
type Decorator struct{ Engine }

// Unwrap implements [Unwrapper].
func (d Decorator) Unwrap() Engine { return d.Engine }

// Size is how much a store holds.
type Size struct {
	Keys    int64 // live keys
	Bytes   int64 // of live keys and values
	History int64 // events that watches can still return
	Disk    int64 // bytes on disk; 0 for engines without
}

// Ability returns an optional interface of an engine or of the one that it decorates.
func Ability[T any](engine Engine) (T, bool) {
	for engine != nil {
		if t, ok := engine.(T); ok {
			return t, true
		}
		u, ok := engine.(Unwrapper)
		if !ok {
			break
		}
		engine = u.Unwrap()
	}
	var zero T
	return zero, false
}

// Check verifies that the stored data equals the written data; engines that cannot do this return [errors.ErrUnsupported].
func (s *Store) Check(ctx context.Context) error {
	c, ok := Ability[Checker](s.engine)
	if !ok {
		return fmt.Errorf("check store: %w", errors.ErrUnsupported)
	}
	return c.Check(ctx)
}

// Stale reports whether writing a record again is useful: its stored bytes would change, though its value does not.
func (s *Store) Stale(ctx context.Context, r *Record) bool {
	z, ok := Ability[Staler](s.engine)
	return ok && z.Stale(ctx, r.Key, r.Revision)
}

// Backup writes a consistent copy of the current state and returns its revision; engines that cannot do this return
// [errors.ErrUnsupported].
func (s *Store) Backup(ctx context.Context, w io.Writer) (int64, error) {
	b, ok := Ability[Backuper](s.engine)
	if !ok {
		return 0, fmt.Errorf("back up store: %w", errors.ErrUnsupported)
	}
	return b.Backup(ctx, w)
}

// BackupAt is Backup of an older state.
func (s *Store) BackupAt(ctx context.Context, w io.Writer, state Point) (int64, error) {
	if state == (Point{}) {
		return s.Backup(ctx, w)
	}
	b, ok := Ability[RevisionBackuper](s.engine)
	if !ok {
		return 0, fmt.Errorf("back up an older state of the store: %w", errors.ErrUnsupported)
	}
	return b.BackupAt(ctx, w, state)
}

// Size returns the size of the store; zero if the engine does not know it.
func (s *Store) Size() Size {
	if z, ok := Ability[Sizer](s.engine); ok {
		return z.Size()
	}
	return Size{}
}

// Bookmark makes every waiting watcher that is behind [Store.Revision] return immediately, at least with a bookmark. A reader that must
// know that its cache is current calls it and waits for the revision. It does nothing if the engine lacks the ability; bookmarks then come
// at the engine's own pace.
func (s *Store) Bookmark() {
	if b, ok := Ability[Bookmarker](s.engine); ok {
		b.Bookmark()
	}
}
