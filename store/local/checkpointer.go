// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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
	snapshot := e.db.Snapshot()
	if err := writeBackup(ctx, w, snapshot, e.clock.Now()); err != nil {
		return 0, fmt.Errorf("back up store: %w", err)
	}
	return snapshot.Revision(), nil
}

func writeBackup(ctx context.Context, w io.Writer, snapshot mvcc.Snapshot, at time.Time) error {
	c, err := newCheckpointWriter(w, snapshot.Revision(), at)
	if err != nil {
		return err
	}
	snapshot.Ascend(func(r *store.Record) bool {
		if err = ctx.Err(); err == nil {
			err = c.add(r)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return c.finish()
}
