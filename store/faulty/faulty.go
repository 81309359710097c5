// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package faulty decorates a store engine so that its operations fail on demand, for tests of code that uses a store.
//
//	plan := func(c faulty.Call) faulty.Fault {
//		if c.Op == faulty.Commit && c.Count == 3 {
//			return faulty.Fault{After: errors.New("connection lost")} // applied, but the caller cannot know
//		}
//		return faulty.Fault{}
//	}
//	s := store.New(faulty.New(memory.Open(memory.Options{}), plan))
//
// With a plan that returns no faults the engine behaves as the one it decorates. [Randomly] is a seeded plan.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package faulty

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/mortise-dev/mortise/store"
)

// Op names an operation of an engine.
type Op string

// The operations that can fail. Next is that of the engine's watchers.
const (
	Commit  Op = "commit"
	Get     Op = "get"
	Range   Op = "range"
	Watch   Op = "watch"
	Next    Op = "next"
	Compact Op = "compact"
)

// Call is a call that a plan decides about.
type Call struct {
	Op    Op
	Count int    // the number of calls of this operation so far, including this one
	Key   string // key or prefix; for a commit, the key of the first op
}

// Fault is the fault of a call; the zero value is none.
type Fault struct {
	// Before fails the call; the engine never sees it.
	Before error
	// After lets the engine execute the call, and then fails it.
	After error
	// Hang, if set, delays the call until the channel is closed or the call's context is done.
	Hang <-chan struct{}
}

// Plan decides about each call. It must be safe for concurrent use.
type Plan func(Call) Fault

// Engine decorates another engine.
type Engine struct {
	store.Decorator // its other calls do not fail on demand
	plan            Plan

	mu     sync.Mutex
	counts map[Op]int
}

var (
	_ store.Engine    = (*Engine)(nil)
	_ store.Unwrapper = (*Engine)(nil)
)

// New decorates an engine.
func New(under store.Engine, plan Plan) *Engine {
	return &Engine{Decorator: store.Decorator{Engine: under}, plan: plan, counts: map[Op]int{}}
}

// Randomly returns a plan that fails each call with the given probability, before or after it, in an order given by the seed.
func Randomly(seed uint64, probability float64, err error) Plan {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 7))
	return func(c Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		if random.Float64() >= probability {
			return Fault{}
		}
		failure := fmt.Errorf("fault in %s %d: %w", c.Op, c.Count, err)
		if random.IntN(2) == 0 {
			return Fault{Before: failure}
		}
		return Fault{After: failure}
	}
}

// call asks the plan, and executes the call unless the plan fails it before.
func (e *Engine) call(ctx context.Context, op Op, key string, do func() error) error {
	e.mu.Lock()
	e.counts[op]++
	count := e.counts[op]
	e.mu.Unlock()
	fault := e.plan(Call{Op: op, Count: count, Key: key})
	if fault.Hang != nil {
		select {
		case <-fault.Hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fault.Before != nil {
		return fault.Before
	}
	if err := do(); err != nil {
		return err
	}
	return fault.After
}

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (revision int64, records []*store.Record, err error) {
	var key string
	if len(ops) > 0 {
		key = ops[0].Key
	}
	err = e.call(ctx, Commit, key, func() (err error) {
		revision, records, err = e.Engine.Commit(ctx, ops...)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return revision, records, nil
}

// Get implements [store.Engine].
func (e *Engine) Get(ctx context.Context, key string) (r *store.Record, revision int64, err error) {
	err = e.call(ctx, Get, key, func() (err error) {
		r, revision, err = e.Engine.Get(ctx, key)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return r, revision, nil
}

// Range implements [store.Engine].
func (e *Engine) Range(ctx context.Context, r store.Range) (page store.Page, err error) {
	err = e.call(ctx, Range, r.Prefix, func() (err error) {
		page, err = e.Engine.Range(ctx, r)
		return err
	})
	if err != nil {
		return store.Page{}, err
	}
	return page, nil
}

// Watch implements [store.Engine].
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	w := &watcher{engine: e, prefix: prefix}
	err := e.call(ctx, Watch, prefix, func() (err error) {
		w.Watcher, err = e.Engine.Watch(ctx, prefix, after)
		return err
	})
	if err != nil {
		if w.Watcher != nil {
			w.Close()
		}
		return nil, err
	}
	return w, nil
}

// watcher decorates another watcher. If Next fails after the engine returned, its batch is lost: the watch is then broken and keeps
// failing, as after a cut connection.
type watcher struct {
	store.Watcher
	engine *Engine
	prefix string
	broken error
}

// Next implements [store.Watcher].
func (w *watcher) Next(ctx context.Context) (b store.Batch, err error) {
	if w.broken != nil {
		return store.Batch{}, w.broken
	}
	answered := false
	err = w.engine.call(ctx, Next, w.prefix, func() (err error) {
		b, err = w.Watcher.Next(ctx)
		answered = err == nil
		return err
	})
	if err != nil {
		if answered {
			w.broken = err
		}
		return store.Batch{}, err
	}
	return b, nil
}

// Compact implements [store.Engine].
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	return e.call(ctx, Compact, "", func() error { return e.Engine.Compact(ctx, revision) })
}
