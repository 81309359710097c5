// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/mortise-dev/mortise/store"
)

const maxSpare = 4 << 20 // the largest buffer of a frame that is kept for reuse

// batch is the commits that share one frame.
type batch struct {
	frame   []byte // room for a header, and entries
	first   int64  // revision of the first transaction
	last    int64
	compact int64         // revision to compact to; 0 for none
	done    chan struct{} // closed when err is known
	err     error
}

func newBatch(buffer []byte) *batch {
	if buffer == nil {
		buffer = make([]byte, frameHeader, 4<<10)
	}
	return &batch{frame: buffer[:frameHeader], done: make(chan struct{})}
}

func (b *batch) empty() bool { return len(b.frame) == frameHeader }

// add puts a staged transaction into the batch.
func (b *batch) add(revision int64, events []store.Event) {
	if b.empty() {
		b.first = revision
	}
	b.last = revision
	b.frame = appendTransaction(b.frame, events)
}

// wake wakes the committer.
func (e *Engine) wake() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	if err := ctx.Err(); err != nil {
		return 0, nil, err
	}
	e.mu.Lock()
	if err := e.writable(); err != nil {
		e.mu.Unlock()
		return 0, nil, err
	}
	change, err := e.db.Stage(e.clock.Now(), ops)
	if err != nil || len(change.Events) == 0 {
		// The answer may depend on staged changes that are not durable: wait for them.
		b := e.unpublished(err, len(ops))
		e.mu.Unlock()
		if b != nil {
			if failed := b.wait(ctx); failed != nil {
				return 0, nil, failed
			}
		}
		return change.Revision, change.Records, err
	}
	b := e.pending
	b.add(change.Revision, change.Events)
	e.mu.Unlock()
	for _, r := range change.Records {
		if r != nil && !r.Expires.IsZero() {
			e.expiry.Set(r.Expires)
		}
	}
	e.write()
	// The batch becomes durable whether or not the caller still waits, so the caller learns the outcome in any case.
	<-b.done
	if b.err != nil {
		return 0, nil, b.err
	}
	return change.Revision, change.Records, nil
}

// writable returns why the store cannot be written. The caller holds the lock.
func (e *Engine) writable() error {
	if e.closed {
		return store.ErrClosed
	}
	return e.failed
}

// unpublished returns the batch that an answer given now depends on, nil if there is none. The caller holds the lock.
func (e *Engine) unpublished(err error, ops int) *batch {
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		// With several ops, the answer also says that the conditions before the conflicting one hold.
		if ops == 1 && conflict.Current != nil && conflict.Current.Revision <= e.db.Revision() {
			return nil
		}
	} else if err != nil {
		return nil
	}
	if !e.pending.empty() {
		return e.pending
	}
	return e.inflight
}

// wait returns when the batch is durable and visible, when it has failed, or when ctx ends. It is for callers that hold nothing that
// depends on the outcome.
func (b *batch) wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("wait for a commit: %w", ctx.Err())
	}
}

// Compact implements [store.Engine].
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if head := e.db.Revision(); revision > head {
		return fmt.Errorf("compact to revision %d of %d: %w", revision, head, store.ErrFuture)
	}
	if revision <= e.db.Compacted() {
		return nil
	}
	e.mu.Lock()
	if err := e.writable(); err != nil {
		e.mu.Unlock()
		return err
	}
	b := e.pending
	if b.empty() {
		b.first, b.last = e.db.Staged()+1, e.db.Staged()
	}
	b.frame = appendCompact(b.frame, revision)
	b.compact = max(b.compact, revision)
	e.mu.Unlock()
	e.wake()
	return b.wait(ctx)
}

// expire deletes expired keys.
func (e *Engine) expire() {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	for e.writable() == nil {
		change := e.db.StageExpired(now)
		if len(change.Events) == 0 {
			e.expiry.Set(e.db.NextExpiry())
			break
		}
		e.pending.add(change.Revision, change.Events)
		e.wake()
	}
}

// write writes pending changes, the caller's among them, unless a batch is being written: then the committer does it afterwards. A single
// writer so writes by itself: to wake the committer and to be woken by it takes more than all else but the sync.
func (e *Engine) write() {
	select {
	case e.writing <- struct{}{}:
		runtime.Gosched() // see commitAll
		e.commitPending()
		<-e.writing
	default:
		e.wake()
	}
}

// commitAll is the committer: it writes pending changes until the engine is closed.
func (e *Engine) commitAll() {
	defer close(e.committed)
	for range e.kick {
		// Writers that the last batch woke may be about to stage their next commit: let them join.
		runtime.Gosched()
		e.writing <- struct{}{}
		more := e.commitPending()
		<-e.writing
		if !more {
			return
		}
	}
}

// commitPending writes pending changes, and reports whether to continue. The caller holds e.writing.
func (e *Engine) commitPending() bool {
	e.mu.Lock()
	b := e.pending
	if b.empty() {
		closed := e.closed
		e.mu.Unlock()
		return !closed
	}
	e.pending, e.inflight, e.spare = newBatch(e.spare), b, nil
	group := e.db.Seal()
	e.mu.Unlock()

	now := e.clock.Now()
	err := e.wal.append(b.frame, b.first, b.last, now)
	if err != nil {
		return e.fail(b, now, err)
	}
	e.db.Publish(now, group)
	if b.compact > 0 {
		b.err = e.db.Compact(b.compact)
	}
	e.mu.Lock()
	e.inflight = nil
	if cap(b.frame) <= maxSpare {
		e.spare = b.frame[:frameHeader]
	}
	b.frame = nil
	closed := e.closed
	e.mu.Unlock()
	close(b.done)
	if e.armed.CompareAndSwap(false, true) {
		e.bookmark.Set(now.Add(e.options.BookmarkEvery))
	}
	e.checkpointer.checkpointIfDue()
	if closed {
		e.wake()
	}
	return true
}

// fail fails a batch that could not be written, and all changes staged after it.
func (e *Engine) fail(b *batch, now time.Time, err error) bool {
	const again = 10 * time.Second
	e.mu.Lock()
	defer e.mu.Unlock()
	upon := e.pending
	e.pending, e.inflight = newBatch(nil), nil
	e.db.Rollback()
	if !errors.Is(err, store.ErrNoSpace) {
		e.failed = fmt.Errorf("%w: %w", store.ErrReadOnly, err)
		err = e.failed
	} else if next := e.db.NextExpiry(); !next.IsZero() {
		e.expiry.Set(now.Add(again))
	}
	for _, b := range []*batch{b, upon} {
		b.err = fmt.Errorf("commit: %w", err)
		close(b.done)
	}
	if e.closed {
		e.wake()
	}
	return true
}
