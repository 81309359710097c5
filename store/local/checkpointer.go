// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// checkpointer bounds the disk space of the engine: it writes checkpoints and removes the log before them.
type checkpointer struct {
	engine       *Engine
	due          chan struct{}
	quit         chan struct{}
	ended        chan struct{}
	attempts     chan struct{} // receives a value after each attempt at a checkpoint, if there is room
	checkpointed atomic.Int64  // bytes of the newest checkpoint
	wait         atomic.Int64  // bytes that must be droppable beyond the usual, after a failure

	files sync.Mutex // held while old files are removed, and while files are checked
}

func newCheckpointer(e *Engine) *checkpointer {
	return &checkpointer{engine: e, due: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{}),
		attempts: make(chan struct{}, 1)}
}

// checkpointIfDue requests a checkpoint if one is due. The committer calls it after each batch. If checkpoints are so slow that the log
// grows to a multiple of its limit, it waits for one: the disk limit has priority over speed.
func (k *checkpointer) checkpointIfDue() {
	const patience = 4
	e := k.engine
	drop := e.wal.droppable(e.db.Compacted())
	if drop == 0 {
		return
	}
	limit := max(2*e.options.SegmentBytes, e.db.Size().Bytes) + k.wait.Load()
	if drop < limit {
		return
	}
	select {
	case <-k.attempts: // of an earlier attempt
	default:
	}
	select {
	case k.due <- struct{}{}:
	default:
	}
	if drop >= patience*limit {
		<-k.attempts
	}
}

func (k *checkpointer) run() {
	defer close(k.ended)
	for {
		select {
		case <-k.quit:
			return
		case <-k.due:
		}
		err := k.checkpoint()
		switch {
		case errors.Is(err, store.ErrClosed):
		case err != nil:
			k.wait.Add(k.engine.options.SegmentBytes)
			k.engine.options.Logger.Error("Could not write checkpoint", "error", err)
		default:
			k.wait.Store(0)
		}
		select {
		case k.attempts <- struct{}{}:
		default:
		}
	}
}

func (k *checkpointer) stop() {
	close(k.quit)
	<-k.ended
}

// checkpoint writes a checkpoint as of the oldest revision that is kept, and removes the files before it.
func (k *checkpointer) checkpoint() error {
	e := k.engine
	for {
		snapshot, revision := e.db.Snapshot(), e.db.Compacted()
		size, err := k.write(snapshot, revision)
		if errors.Is(err, store.ErrCompacted) {
			continue // history was trimmed meanwhile
		}
		if err != nil {
			return err
		}
		k.checkpointed.Store(size)
		return k.remove(revision)
	}
}

func (k *checkpointer) write(snapshot mvcc.Snapshot, revision int64) (int64, error) {
	e := k.engine
	var size int64
	err := writeFile(e.options.Disk, e.dir, checkNext, checkpointName(revision), func(f disk.File) error {
		w := bufio.NewWriterSize(io.NewOffsetWriter(f, 0), blockSize)
		c, err := newCheckpointWriter(w, revision, e.clock.Now())
		if err != nil {
			return err
		}
		var failed error
		err = snapshot.AscendAt(revision, func(r *store.Record) bool {
			select {
			case <-k.quit:
				failed = store.ErrClosed
			default:
				failed = c.add(r)
			}
			return failed == nil
		})
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if err := c.finish(); err != nil {
			return err
		}
		if err := w.Flush(); err != nil {
			return err
		}
		size, err = f.Size()
		return err
	})
	return size, err
}

// remove removes files that a checkpoint makes superfluous.
func (k *checkpointer) remove(revision int64) error {
	k.files.Lock()
	defer k.files.Unlock()
	e := k.engine
	c, err := list(e.options.Disk, e.dir)
	if err != nil {
		return err
	}
	for _, r := range c.checkpoints {
		if r < revision {
			if err := e.options.Disk.Remove(filepath.Join(e.dir, checkpointName(r))); err != nil {
				return fmt.Errorf("remove old checkpoint: %w", err)
			}
		}
	}
	return e.wal.drop(revision)
}

// Backup implements [store.Backuper]: it writes the current state while the store is in use.
func (e *Engine) Backup(ctx context.Context, w io.Writer) (int64, error) {
	return e.BackupAt(ctx, w, store.Point{})
}

// BackupAt implements [store.RevisionBackuper].
func (e *Engine) BackupAt(ctx context.Context, w io.Writer, state store.Point) (int64, error) {
	return backUp(ctx, w, e.db, state, e.clock.Now())
}

// RevisionAt implements [store.History]. It tells times apart that are [mvcc.Options].MarkEvery from each other.
func (e *Engine) RevisionAt(at time.Time) (int64, error) {
	return mvcc.RevisionAt(e.db, at, e.clock.Now())
}

// backUp writes a state and returns its revision.
func backUp(ctx context.Context, w io.Writer, db *mvcc.DB, state store.Point, now time.Time) (int64, error) {
	snapshot := db.Snapshot()
	revision, ascend := snapshot.Revision(), func(f func(*store.Record) bool) error { snapshot.Ascend(f); return nil }
	if state != (store.Point{}) {
		var err error
		if state.Revision == 0 {
			state.Revision, err = mvcc.RevisionAt(db, state.Time, now)
		}
		if err == nil && state.Revision > revision {
			err = fmt.Errorf("the store is at revision %d: %w", revision, store.ErrFuture)
		}
		if err != nil {
			return 0, fmt.Errorf("back up store: %w", err)
		}
		revision, ascend = state.Revision, func(f func(*store.Record) bool) error { return snapshot.AscendAt(state.Revision, f) }
	}
	if err := writeBackup(ctx, w, revision, now, ascend); err != nil {
		if errors.Is(err, store.ErrCompacted) {
			err = fmt.Errorf("the history begins at revision %d: %w", db.Compacted(), err)
		}
		return 0, fmt.Errorf("back up store: %w", err)
	}
	return revision, nil
}

// writeBackup writes what ascend passes on. It writes nothing if ascend fails before its first record.
func writeBackup(ctx context.Context, w io.Writer, revision int64, at time.Time, ascend func(func(*store.Record) bool) error) error {
	var c *checkpointWriter
	var failed error
	add := func(r *store.Record) bool {
		if c == nil {
			c, failed = newCheckpointWriter(w, revision, at)
		}
		if failed == nil {
			failed = ctx.Err()
		}
		if failed == nil {
			failed = c.add(r)
		}
		return failed == nil
	}
	if err := errors.Join(ascend(add), failed); err != nil {
		return err
	}
	if c == nil { // a store without keys
		var err error
		if c, err = newCheckpointWriter(w, revision, at); err != nil {
			return err
		}
	}
	return c.finish()
}

// WriteBackup writes what another engine has at a revision as a backup, for [Restore]. The records come in key order; an error among them
// ends the backup. If the first one is an error, nothing is written.
func WriteBackup(ctx context.Context, w io.Writer, revision int64, records iter.Seq2[*store.Record, error], options Options) error {
	err := writeBackup(ctx, w, revision, options.withDefaults().Clock.Now(), func(f func(*store.Record) bool) error {
		for r, err := range records {
			if err != nil {
				return err
			}
			if !f(r) {
				break
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	return nil
}
