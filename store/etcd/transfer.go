// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/store"
)

const (
	// batchOps and batchBytes bound a transaction of Fill; etcd's own limits are 128 and 1.5 MiB by default.
	batchOps, batchBytes = 100, 1 << 20
	// atOnce is the number of transactions of Fill in flight.
	atOnce = 64
	// maxRaise is by how much Fill raises the revision at most: etcd takes some ten thousand writes a second.
	maxRaise = 10_000_000
)

// ReadContent reads the state of the keys under the prefix from etcd at a revision, or the newest one if revision is 0. The members may be
// in use. Content.Revision is etcd's. progress may be nil. The error is [store.ErrCompacted] or [store.ErrFuture] if etcd does not have the
// revision.
func ReadContent(ctx context.Context, o Options, revision int64, progress Progress) (c store.Content, err error) {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	e, err := Open(ctx, o)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if c.Revision = e.Revision(); revision > c.Revision {
		return c, fmt.Errorf("read etcd at revision %d: it is at %d: %w", revision, c.Revision, store.ErrFuture)
	}
	if revision != 0 {
		c.Revision = revision
	}
	counter := &counter{stage: "read the keys", all: int64(e.mirror.db.Snapshot().Len()), report: progress}
	for r, err := range e.records(ctx, c.Revision) {
		if err != nil {
			return c, err
		}
		c.Records = append(c.Records, r)
		counter.add(1)
	}
	return c, nil
}

// Progress hears now and then how much of a stage of Fill or ReadContent is done; never from two goroutines at the same time.
type Progress func(stage string, done, all int64)

// Fill writes the content to etcd, under its keys of the prefix, and reads it back. etcd assigns revisions itself, one to each
// transaction: Fill raises them above c.Revision first, so that no client mistakes a new revision for an old one, and compacts afterwards.
// No server may use the prefix meanwhile. A Fill that was cut off goes on where it stopped; keys of another content are an error.
func Fill(ctx context.Context, o Options, c store.Content, progress Progress) (err error) {
	e, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	f := &filler{engine: e, content: c, progress: progress, spare: e.keys.First() + "mortise-import"}
	missing, err := f.missing()
	if err != nil {
		return err
	}
	if err := f.raise(ctx); err != nil {
		return err
	}
	if err := f.write(ctx, missing); err != nil {
		return err
	}
	if err := e.fresh(ctx); err != nil {
		return err
	}
	if missing, err = f.missing(); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("etcd lacks %d keys that were written, such as %q: does a server write to it?", len(missing), missing[0].Key)
	}
	return e.compactTo(ctx, e.Revision())
}

type filler struct {
	engine   *Engine
	content  store.Content
	progress Progress
	spare    string // the key whose writes raise the revision
}

// missing returns the records that etcd does not have.
func (f *filler) missing() ([]*store.Record, error) {
	want := make(map[string]*store.Record, len(f.content.Records))
	for _, r := range f.content.Records {
		want[r.Key] = r
	}
	var err error
	f.engine.mirror.db.Snapshot().Ascend(func(has *store.Record) bool {
		r := want[has.Key]
		switch {
		case has.Key == f.engine.keys.Inner([]byte(f.spare)):
		case r == nil:
			err = fmt.Errorf("etcd holds key %q, which the source does not have: %w", has.Key, store.ErrInvalid)
		case !bytes.Equal(r.Value, has.Value):
			err = fmt.Errorf("etcd holds another value of key %q than the source: %w", has.Key, store.ErrInvalid)
		}
		delete(want, has.Key)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	now := f.engine.options.Clock.Now()
	var missing []*store.Record
	for _, r := range f.content.Records {
		if want[r.Key] != nil && (r.Expires.IsZero() || r.Expires.After(now)) {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// raise writes a key until etcd's revision is that of the content.
func (f *filler) raise(ctx context.Context) error {
	from, to := f.engine.Revision(), f.content.Revision
	if to-from > maxRaise {
		return fmt.Errorf("etcd is at revision %d and the source at %d: raising it by more than %d takes too long; export to a file, and "+
			"restore that with etcdutl: %w", from, to, maxRaise, store.ErrTooLarge)
	}
	counter := f.count("raise the revision", max(to-from, 0))
	var left atomic.Int64
	left.Store(to - from)
	g, gctx := errgroup.WithContext(ctx)
	for range atOnce {
		g.Go(func() error {
			for left.Add(-1) >= 0 {
				if _, err := f.engine.client.Put(gctx, f.spare, ""); err != nil {
					return fmt.Errorf("raise etcd's revision: %w", translate(err))
				}
				counter.add(1)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if _, err := f.engine.client.Delete(ctx, f.spare); err != nil {
		return fmt.Errorf("raise etcd's revision: %w", translate(err))
	}
	return nil
}

// write commits the records in batches.
func (f *filler) write(ctx context.Context, records []*store.Record) error {
	counter := f.count("write the keys", int64(len(records)))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for len(records) > 0 && gctx.Err() == nil {
		var ops []store.Op
		size := 0
		for _, r := range records {
			if size += len(r.Key) + len(r.Value); len(ops) == batchOps || len(ops) > 0 && size > batchBytes {
				break
			}
			op := store.Op{Key: r.Key, Value: bytes.Clone(r.Value)}
			if !r.Expires.IsZero() {
				op.TTL = max(r.Expires.Sub(f.engine.options.Clock.Now()), time.Second)
			}
			ops = append(ops, op)
		}
		records = records[len(ops):]
		g.Go(func() error {
			if _, _, err := f.engine.Commit(gctx, ops...); err != nil {
				return fmt.Errorf("write keys from %q on: %w", ops[0].Key, err)
			}
			counter.add(int64(len(ops)))
			return nil
		})
	}
	return g.Wait()
}

// reportEvery is the number of steps between two calls of Progress.
const reportEvery = 10_000

// counter counts the steps of a stage.
type counter struct {
	stage  string
	all    int64
	report Progress

	mu   sync.Mutex
	done int64
}

func (f *filler) count(stage string, all int64) *counter {
	return &counter{stage: stage, all: all, report: f.progress}
}

func (c *counter) add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.done
	if c.done += n; c.done == c.all || c.done/reportEvery != before/reportEvery {
		c.report(c.stage, c.done, c.all)
	}
}
