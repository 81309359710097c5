// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package memory is a store engine in memory: for tests, for throw-away clusters, and as the baseline for other engines. It keeps all
// promises of [store.Engine] except durable.
//
// Writers take turns under one lock; readers and watchers take none. See package mvcc.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// Options are the options of an engine. The zero value is useful.
type Options struct {
	mvcc.Options
	Clock         alarm.Clock   // default: the system's
	BookmarkEvery time.Duration // the longest time without a bookmark for a watcher that is behind; default 1 s
}

// Engine implements [store.Engine] in memory.
type Engine struct {
	db       *mvcc.DB
	clock    alarm.Clock
	every    time.Duration
	expiry   *alarm.Alarm
	bookmark *alarm.Alarm
	waiting  atomic.Bool // bookmark is set

	mu     sync.Mutex // held by writers
	closed bool
}

var (
	_ store.Engine     = (*Engine)(nil)
	_ store.Sizer      = (*Engine)(nil)
	_ store.Bookmarker = (*Engine)(nil)
	_ store.Forker     = (*Engine)(nil)
	_ store.History    = (*Engine)(nil)
)

// Open returns an empty engine.
func Open(options Options) *Engine {
	if options.Clock == nil {
		options.Clock = alarm.System{}
	}
	if options.BookmarkEvery == 0 {
		options.BookmarkEvery = time.Second
	}
	if options.MarkEvery == 0 {
		options.MarkEvery = -1 // 16 bytes a revision
	}
	return open(mvcc.New(1, options.Options), options.Clock, options.BookmarkEvery)
}

func open(db *mvcc.DB, clock alarm.Clock, every time.Duration) *Engine {
	e := &Engine{db: db, clock: clock, every: every}
	e.expiry = alarm.New(e.clock, e.expire)
	e.bookmark = alarm.New(e.clock, func() {
		e.waiting.Store(false)
		e.db.Bookmark()
	})
	return e
}

// Fork returns an independent engine with the same keys, history and revision, and shares what neither of the two writes. It takes the same
// time for any number of keys. The error is [store.ErrClosed].
func (e *Engine) Fork() (store.Engine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, store.ErrClosed
	}
	return open(mvcc.Fork(e.db), e.clock, e.every).armed(), nil
}

// ForkAt is Fork at an older revision, without the history after it. It takes time for each key. The error is [store.ErrClosed],
// [store.ErrCompacted] or [store.ErrFuture].
func (e *Engine) ForkAt(revision int64) (store.Engine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, store.ErrClosed
	}
	db, err := mvcc.ForkAt(e.db, revision)
	if err != nil {
		return nil, fmt.Errorf("fork at revision %d: %w", revision, err)
	}
	return open(db, e.clock, e.every).armed(), nil
}

// RevisionAt implements [store.History].
func (e *Engine) RevisionAt(at time.Time) (int64, error) {
	return mvcc.RevisionAt(e.db, at, e.clock.Now())
}

// armed sets the alarm of the keys that expire.
func (e *Engine) armed() *Engine {
	e.expiry.Set(e.db.NextExpiry())
	return e
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, nil, store.ErrClosed
	}
	now := e.clock.Now()
	change, err := e.db.Stage(now, ops)
	if err != nil {
		return 0, nil, err
	}
	if len(change.Events) > 0 {
		e.publish(now)
	}
	return change.Revision, change.Records, nil
}

// publish makes staged changes visible. The caller holds the lock.
func (e *Engine) publish(now time.Time) {
	e.db.Publish(now, e.db.Seal())
	e.expiry.Set(e.db.NextExpiry())
	if e.waiting.CompareAndSwap(false, true) {
		e.bookmark.Set(now.Add(e.every))
	}
}

// expire deletes expired keys.
func (e *Engine) expire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for !e.closed && len(e.db.StageExpired(now).Events) > 0 {
		e.publish(now)
	}
	e.expiry.Set(e.db.NextExpiry())
}

// Get implements [store.Engine].
func (e *Engine) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	return e.db.Get(ctx, key)
}

// Range implements [store.Engine].
func (e *Engine) Range(ctx context.Context, r store.Range) (store.Page, error) {
	return e.db.Range(ctx, r)
}

// Watch implements [store.Engine].
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	w, err := e.db.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Revision implements [store.Engine].
func (e *Engine) Revision() int64 { return e.db.Revision() }

// Compacted implements [store.Engine].
func (e *Engine) Compacted() int64 { return e.db.Compacted() }

// Compact implements [store.Engine].
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return store.ErrClosed
	}
	return e.db.Compact(revision)
}

// Size implements [store.Sizer].
func (e *Engine) Size() store.Size { return e.db.Size() }

// Bookmark implements [store.Bookmarker].
func (e *Engine) Bookmark() { e.db.Bookmark() }

// Close implements [store.Engine].
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.db.Close()
	e.mu.Unlock()
	e.expiry.Stop()
	e.bookmark.Stop()
	return nil
}
