// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

// Report is the result of [Check].
type Report struct {
	Revision  int64 // newest
	Compacted int64 // oldest that can be read
	Keys      int64
	Bytes     int64 // of live keys and values
	Events    int64 // available to watches
	Segments  int   // of the log
	Torn      int64 // bytes at the end of the log that a crash has left; Open cuts them off
}

// Check reads and verifies all files of a directory, without changing anything. The store must not be in use.
func Check(ctx context.Context, dir string, options Options) (Report, error) {
	var report Report
	err := offline(ctx, dir, options, func(b *rebuilder, found recovered) error {
		size := b.db.Size()
		report = Report{
			Revision: b.db.Revision(), Compacted: b.db.Compacted(), Keys: size.Keys, Bytes: size.Bytes,
			Events: size.History, Segments: len(found.segments), Torn: found.torn,
		}
		return nil
	})
	if err != nil {
		return report, fmt.Errorf("check store: %w", err)
	}
	return report, nil
}

// Backup writes the newest state in a directory, without changing it, and returns its revision. The store must not be in use; use
// [Engine.Backup] for a running one.
func Backup(ctx context.Context, dir string, w io.Writer, options Options) (int64, error) {
	return BackupAt(ctx, dir, w, store.Point{}, options)
}

// BackupAt is [Backup] of an older state. The error is [store.ErrCompacted] or [store.ErrFuture] if the history does not have it.
func BackupAt(ctx context.Context, dir string, w io.Writer, state store.Point, options Options) (int64, error) {
	var revision int64
	err := offline(ctx, dir, options, func(b *rebuilder, _ recovered) (err error) {
		revision, err = backUp(ctx, w, b.db, state, options.withDefaults().Clock.Now())
		return err
	})
	return revision, err
}

// offline reads a directory under its lock.
func offline(ctx context.Context, dir string, options Options, use func(*rebuilder, recovered) error) error {
	o := options.withDefaults()
	id, exists, err := readFormat(o.Disk, dir)
	if err != nil {
		return err
	}
	if !exists {
		return fmt.Errorf("read %s: no store: %w", dir, fs.ErrNotExist)
	}
	lock, err := o.Disk.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	b := &rebuilder{options: o.Options}
	found, err := rebuild(o.Disk, dir, id, b)
	if err == nil {
		b.finish(o.Clock.Now())
		err = ctx.Err()
	}
	if err == nil {
		err = use(b, found)
	}
	return errors.Join(err, lock.Close())
}

// Restore creates a store from a backup, in a directory that is empty or absent, and returns its revision. It adds bump to the revision: if
// bump exceeds the number of commits since the backup, no client that saw the old store's revisions can mistake the new ones for them.
func Restore(ctx context.Context, r io.Reader, dir string, bump int64, options Options) (int64, error) {
	revision, err := restore(ctx, r, dir, bump, options.withDefaults())
	if err != nil {
		return 0, fmt.Errorf("restore store: %w", err)
	}
	return revision, nil
}

func restore(ctx context.Context, r io.Reader, dir string, bump int64, o Options) (int64, error) {
	if bump < 0 {
		return 0, fmt.Errorf("bump by %d: %w", bump, store.ErrInvalid)
	}
	if err := mustBeEmpty(o.Disk, dir); err != nil {
		return 0, err
	}
	from, err := newCheckpointReader(bufio.NewReaderSize(r, blockSize))
	if err != nil {
		return 0, fmt.Errorf("read backup: %w: %w", store.ErrCorrupt, err)
	}
	revision := from.revision + bump
	return revision, create(ctx, dir, revision, o, func(add func(*store.Record) error) error {
		if err := from.all(add); err != nil {
			return fmt.Errorf("read backup at offset %d: %w: %w", from.offset, store.ErrCorrupt, err)
		}
		return nil
	})
}

// ReadBackup returns what a backup holds, for an engine that is not local.
func ReadBackup(ctx context.Context, r io.Reader) (store.Content, error) {
	from, err := newCheckpointReader(bufio.NewReaderSize(r, blockSize))
	if err != nil {
		return store.Content{}, fmt.Errorf("read backup: %w: %w", store.ErrCorrupt, err)
	}
	c := store.Content{Revision: from.revision}
	if err := from.all(func(r *store.Record) error {
		c.Records = append(c.Records, r)
		return ctx.Err()
	}); err != nil {
		return store.Content{}, fmt.Errorf("read backup at offset %d: %w: %w", from.offset, store.ErrCorrupt, err)
	}
	return c, nil
}

// Create creates a store with the given content, in a directory that is empty or absent.
func Create(ctx context.Context, dir string, c store.Content, options Options) error {
	o := options.withDefaults()
	err := mustBeEmpty(o.Disk, dir)
	if err == nil {
		err = create(ctx, dir, c.Revision, o, func(add func(*store.Record) error) error {
			for i, r := range c.Records {
				if r.Revision > c.Revision || i > 0 && r.Key <= c.Records[i-1].Key {
					return fmt.Errorf("record %q of revision %d: %w", r.Key, r.Revision, store.ErrInvalid)
				}
				if err := add(r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("create store: %w", err)
	}
	return nil
}

// ReadContent reads the newest state in a directory, without changing it. The store must not be in use.
func ReadContent(ctx context.Context, dir string, options Options) (store.Content, error) {
	var c store.Content
	err := offline(ctx, dir, options, func(b *rebuilder, _ recovered) error {
		snapshot := b.db.Snapshot()
		c.Revision, c.Records = snapshot.Revision(), make([]*store.Record, 0, snapshot.Len())
		snapshot.Ascend(func(r *store.Record) bool {
			c.Records = append(c.Records, r)
			return true
		})
		return nil
	})
	if err != nil {
		return store.Content{}, fmt.Errorf("read store: %w", err)
	}
	return c, nil
}

func mustBeEmpty(d disk.FS, dir string) error {
	_, exists, err := readFormat(d, dir)
	if err == nil && exists {
		err = fmt.Errorf("write %s: a store is there: %w", dir, fs.ErrExist)
	}
	return err
}

// create makes a directory a store whose records are those that fill adds, in key order.
func create(ctx context.Context, dir string, revision int64, o Options, fill func(add func(*store.Record) error) error) error {
	if err := o.Disk.MkdirAll(dir); err != nil {
		return err
	}
	lock, err := o.Disk.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	// The format file comes last: without it the directory is not a store.
	err = writeFile(o.Disk, dir, checkNext, checkpointName(revision), func(f disk.File) error {
		w := bufio.NewWriterSize(io.NewOffsetWriter(f, 0), blockSize)
		to, err := newCheckpointWriter(w, revision, o.Clock.Now())
		if err != nil {
			return err
		}
		if err := fill(func(record *store.Record) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return to.add(record)
		}); err != nil {
			return err
		}
		if err := to.finish(); err != nil {
			return err
		}
		return w.Flush()
	})
	if err == nil {
		_, err = writeFormat(o.Disk, dir)
	}
	return errors.Join(err, lock.Close())
}

// Check implements [store.Checker]: it reads and verifies the running store's files, except for the newest segment of the log, which is
// being written.
func (e *Engine) Check(ctx context.Context) error {
	e.checkpointer.files.Lock()
	defer e.checkpointer.files.Unlock()
	_, err := replay(e.options.Disk, e.dir, e.wal.id, true, verifier{})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("check store: %w", err)
	}
	return nil
}

// verifier is a [replayer] that keeps nothing.
type verifier struct{}

func (verifier) begin(int64)                                 {}
func (verifier) load(*store.Record)                          {}
func (verifier) transaction(int64, time.Time, []store.Event) {}
func (verifier) compact(int64)                               {}
