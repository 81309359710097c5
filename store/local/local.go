// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/local/disk"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// Options are the options of an engine. The zero value is useful.
type Options struct {
	mvcc.Options
	SegmentBytes  int64         // length of a log file; default 16 MiB
	BookmarkEvery time.Duration // the longest time without a bookmark for a watcher that is behind; default 1 s
	Clock         alarm.Clock   // default: the system's
	Disk          disk.FS       // default: the system's
	Logger        *slog.Logger  // logs background work; default: none
}

func (o Options) withDefaults() Options {
	o.Options = o.Options.WithDefaults()
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 16 << 20
	}
	if o.BookmarkEvery == 0 {
		o.BookmarkEvery = time.Second
	}
	if o.Clock == nil {
		o.Clock = alarm.System{}
	}
	if o.Disk == nil {
		o.Disk = disk.OS{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Engine implements [store.Engine] in a directory.
type Engine struct {
	dir      string
	options  Options
	clock    alarm.Clock
	lock     io.Closer
	db       *mvcc.DB
	wal      *wal
	expiry   *alarm.Alarm
	bookmark *alarm.Alarm
	armed    atomic.Bool // bookmark is set

	mu       sync.Mutex // held by writers; also guards what follows
	pending  *batch     // the content of the next frame
	inflight *batch     // being written
	spare    []byte     // a free buffer for a frame
	failed   error      // why the store cannot be written any more
	closed   bool

	writing      chan struct{} // held while a batch is written
	kick         chan struct{} // there is something pending, or the engine is closed
	committed    chan struct{} // closed when the committer has ended
	checkpointer *checkpointer
	closing      sync.Once
}

var (
	_ store.Engine     = (*Engine)(nil)
	_ store.Sizer      = (*Engine)(nil)
	_ store.Bookmarker = (*Engine)(nil)
	_ store.Checker    = (*Engine)(nil)
	_ store.Backuper   = (*Engine)(nil)
)

// Open opens the store in a directory, or creates one if there is none. Errors are [store.ErrLocked], [store.ErrFormat],
// [store.ErrCorrupt], or the disk's. After an error nothing is changed, except that Open may have created an empty directory.
func Open(dir string, options Options) (*Engine, error) {
	o := options.withDefaults()
	e := &Engine{
		dir: dir, options: o, clock: o.Clock, pending: newBatch(nil),
		writing: make(chan struct{}, 1), kick: make(chan struct{}, 1), committed: make(chan struct{}),
	}
	// Check before creating the lock file, so that Open writes nothing to a directory that is not a store.
	if _, _, err := readFormat(o.Disk, dir); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := o.Disk.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("make store: %w", err)
	}
	lock, err := o.Disk.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	e.lock = lock
	if err := e.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), lock.Close())
	}
	e.expiry = alarm.New(e.clock, e.expire)
	e.bookmark = alarm.New(e.clock, func() {
		e.armed.Store(false)
		e.db.Bookmark()
	})
	go e.commitAll()
	go e.checkpointer.run()
	e.expiry.Set(e.db.NextExpiry())
	return e, nil
}

// recover reads the directory's state into memory and prepares the log for writing.
func (e *Engine) recover() error {
	fs := e.options.Disk
	id, exists, err := readFormat(fs, e.dir)
	if err != nil {
		return err
	}
	if !exists {
		if id, err = writeFormat(fs, e.dir); err != nil {
			return err
		}
	}
	to := &rebuilder{options: e.options.Options}
	found, err := rebuild(fs, e.dir, id, to)
	if err != nil {
		return err
	}
	e.db = to.finish(e.clock.Now())
	e.wal = &wal{fs: fs, dir: e.dir, id: id, segmentBytes: e.options.SegmentBytes, segments: found.segments}
	e.checkpointer = newCheckpointer(e)
	e.checkpointer.checkpointed.Store(found.size)
	if found.torn > 0 {
		e.options.Logger.Info("Removed the torn end of the log", "bytes", found.torn, "revision", found.revision)
	}
	if err := tidy(fs, e.dir, found); err != nil {
		return err
	}
	if len(found.segments) == 0 || found.unusable != "" {
		return nil // the first append creates one
	}
	return e.wal.resume()
}

// tidy removes files that a crash has left behind.
func tidy(fs disk.FS, dir string, found recovered) error {
	c, err := list(fs, dir)
	if err != nil {
		return err
	}
	names := c.leftovers
	for _, r := range c.checkpoints {
		if r < found.base {
			names = append(names, checkpointName(r))
		}
	}
	used := map[string]bool{}
	for _, s := range found.segments {
		used[s.name] = true
	}
	for _, first := range c.segments {
		if !used[walName(first)] {
			names = append(names, walName(first))
		}
	}
	for _, name := range names {
		if err := fs.Remove(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove leftover: %w", err)
		}
	}
	return nil
}

// rebuilder is a [replayer] that builds the index and history.
type rebuilder struct {
	options   mvcc.Options
	db        *mvcc.DB
	unsealed  int
	compacted int64
}

// rebuild replays a directory into a rebuilder.
func rebuild(fs disk.FS, dir string, id identity, to *rebuilder) (recovered, error) {
	p := newPipe(to)
	defer p.close()
	return replay(fs, dir, id, false, p)
}

const replayGroup = 32 << 10 // transactions that are published together

func (b *rebuilder) begin(revision int64) { b.db = mvcc.New(revision, b.options) }

func (b *rebuilder) load(r *store.Record) { b.db.Load(r) }

func (b *rebuilder) transaction(revision int64, at time.Time, events []store.Event) {
	b.db.Replay(revision, events)
	b.db.Note(at, revision)
	if b.unsealed++; b.unsealed >= replayGroup {
		b.db.Publish(at, b.db.Seal())
		b.unsealed = 0
	}
}

func (b *rebuilder) compact(revision int64) { b.compacted = max(b.compacted, revision) }

func (b *rebuilder) finish(now time.Time) *mvcc.DB {
	b.db.Publish(now, b.db.Seal())
	if b.compacted > b.db.Compacted() {
		if err := b.db.Compact(b.compacted); err != nil {
			panic(fmt.Sprintf("local: log compacts to revision %d, ends at %d", b.compacted, b.db.Revision()))
		}
	}
	return b.db
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

// Bookmark implements [store.Bookmarker].
func (e *Engine) Bookmark() { e.db.Bookmark() }

// Size implements [store.Sizer].
func (e *Engine) Size() store.Size {
	size := e.db.Size()
	for _, s := range e.wal.list() {
		size.Disk += s.size
	}
	size.Disk += e.checkpointer.checkpointed.Load()
	return size
}

// Close implements [store.Engine].
func (e *Engine) Close() error {
	var err error
	e.closing.Do(func() {
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.wake()
		<-e.committed
		e.expiry.Stop()
		e.bookmark.Stop()
		e.checkpointer.stop()
		e.db.Close()
		if e.failed == nil {
			err = e.wal.finish()
		} else {
			e.wal.abandon()
		}
		if err = errors.Join(err, e.lock.Close()); err != nil {
			err = fmt.Errorf("close store: %w", err)
		}
	})
	return err
}
