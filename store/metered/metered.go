// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package metered decorates a store engine with counters and latency histograms. [Engine.Snapshot] returns them as a plain Go value;
// [Engine.Collector] exports them to Prometheus.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package metered

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// Op names an operation.
type Op int

// The measured operations. Next counts the batches of watchers, not the time they wait.
const (
	Commit Op = iota
	Get
	Range
	Watch
	Next
	Compact
	operations
)

// String returns the operation's name in metrics.
func (o Op) String() string {
	return [operations]string{"commit", "get", "range", "watch", "next", "compact"}[o]
}

// buckets is the number of latency buckets, whose bounds are powers of two of microseconds: the first up to 1 µs, the last beyond 2^22 µs,
// four seconds.
const buckets = 24

// Bounds returns the upper bounds of the latency histograms, without the last bucket, which has none.
func Bounds() []time.Duration {
	b := make([]time.Duration, buckets-1)
	for i := range b {
		b[i] = time.Microsecond << i
	}
	return b
}

// Latency is a histogram of the duration of calls.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Buckets [buckets]uint64 // calls up to the bucket's bound and above the previous one
}

// Operation has the metrics of one operation.
type Operation struct {
	Latency   Latency
	Errors    uint64 // without conflicts and cancelled calls
	Conflicts uint64
}

// Snapshot is the state of all counters.
type Snapshot struct {
	Operations map[string]Operation
	Revision   int64
	Compacted  int64
	Watchers   int64 // open now
	Events     uint64
	Bookmarks  uint64
	Read       uint64 // records that ranges and gets returned
	Written    uint64 // bytes of keys and values of commits
	Size       store.Size
}

// counters are the counters of one operation.
type counters struct {
	sum, errors, conflicts atomic.Uint64
	buckets                [buckets]atomic.Uint64
}

// Engine decorates another engine.
type Engine struct {
	store.Decorator
	now      func() time.Time
	ops      [operations]counters
	watchers atomic.Int64
	events   atomic.Uint64
	marks    atomic.Uint64
	read     atomic.Uint64
	written  atomic.Uint64
}

var (
	_ store.Engine    = (*Engine)(nil)
	_ store.Unwrapper = (*Engine)(nil)
)

// New decorates an engine. now is the clock, [time.Now] if nil.
func New(under store.Engine, now func() time.Time) *Engine {
	if now == nil {
		now = time.Now
	}
	return &Engine{Decorator: store.Decorator{Engine: under}, now: now}
}

// done counts a call that began at began.
func (e *Engine) done(op Op, began time.Time, err error) {
	c := &e.ops[op]
	took := max(e.now().Sub(began), 0)
	c.sum.Add(uint64(took))
	c.buckets[bucket(took)].Add(1)
	var conflict *store.ConflictError
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case errors.As(err, &conflict):
		c.conflicts.Add(1)
	default:
		c.errors.Add(1)
	}
}

// bucket returns the index of a latency's bucket.
func bucket(took time.Duration) int {
	us := uint64((took + time.Microsecond - 1) / time.Microsecond)
	if us <= 1 {
		return 0
	}
	return min(bits.Len64(us-1), buckets-1)
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	began := e.now()
	revision, records, err := e.Engine.Commit(ctx, ops...)
	e.done(Commit, began, err)
	if err == nil {
		n := 0
		for i := range ops {
			n += len(ops[i].Key) + len(ops[i].Value)
		}
		e.written.Add(uint64(n))
	}
	return revision, records, err
}

// Get implements [store.Engine].
func (e *Engine) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	began := e.now()
	r, revision, err := e.Engine.Get(ctx, key)
	e.done(Get, began, err)
	if r != nil {
		e.read.Add(1)
	}
	return r, revision, err
}

// Range implements [store.Engine].
func (e *Engine) Range(ctx context.Context, r store.Range) (store.Page, error) {
	began := e.now()
	page, err := e.Engine.Range(ctx, r)
	e.done(Range, began, err)
	e.read.Add(uint64(len(page.Records)))
	return page, err
}

// Watch implements [store.Engine].
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	began := e.now()
	w, err := e.Engine.Watch(ctx, prefix, after)
	e.done(Watch, began, err)
	if err != nil {
		return nil, err
	}
	e.watchers.Add(1)
	return &watcher{Watcher: w, engine: e}, nil
}

// watcher counts events.
type watcher struct {
	store.Watcher
	engine *Engine
	closed atomic.Bool
}

// Next implements [store.Watcher].
func (w *watcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.Watcher.Next(ctx)
	now := w.engine.now()
	w.engine.done(Next, now, err)
	switch {
	case err != nil:
	case len(b.Events) == 0:
		w.engine.marks.Add(1)
	default:
		w.engine.events.Add(uint64(len(b.Events)))
	}
	return b, err
}

// Close implements [store.Watcher].
func (w *watcher) Close() {
	if !w.closed.Swap(true) {
		w.engine.watchers.Add(-1)
	}
	w.Watcher.Close()
}

// Compact implements [store.Engine].
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	began := e.now()
	err := e.Engine.Compact(ctx, revision)
	e.done(Compact, began, err)
	return err
}

// Snapshot reads all counters. Each is exact; calls that end meanwhile may be in some and not in others.
func (e *Engine) Snapshot() Snapshot {
	s := Snapshot{
		Operations: make(map[string]Operation, operations),
		Revision:   e.Revision(),
		Compacted:  e.Compacted(),
		Watchers:   e.watchers.Load(),
		Events:     e.events.Load(),
		Bookmarks:  e.marks.Load(),
		Read:       e.read.Load(),
		Written:    e.written.Load(),
	}
	if z, ok := store.Ability[store.Sizer](e.Engine); ok {
		s.Size = z.Size()
	}
	for op := range operations {
		c := &e.ops[op]
		o := Operation{Errors: c.errors.Load(), Conflicts: c.conflicts.Load()}
		o.Latency.Sum = time.Duration(c.sum.Load())
		for i := range c.buckets {
			o.Latency.Buckets[i] = c.buckets[i].Load()
			o.Latency.Count += o.Latency.Buckets[i]
		}
		s.Operations[op.String()] = o
	}
	return s
}
