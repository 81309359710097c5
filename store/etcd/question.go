// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/mortise-dev/mortise/store"
)

// question asks for etcd's revision, one question at a time, which all share that began to wait before it was asked.
type question struct {
	ask  func(ctx context.Context) (int64, error)
	woke chan struct{} // a caller waits

	mu    sync.Mutex
	next  *answer // to the question that is not asked yet; nil: no caller waits for it
	ended bool

	asked, answered atomic.Int64 // questions, and callers that they answered
}

// answer is set when done is closed.
type answer struct {
	done     chan struct{}
	revision int64
	err      error
}

func newQuestion(ask func(ctx context.Context) (int64, error)) *question {
	return &question{ask: ask, woke: make(chan struct{}, 1)}
}

// current returns a revision no older than any commit acknowledged before the call.
func (q *question) current(ctx context.Context) (int64, error) {
	q.mu.Lock()
	if q.ended {
		q.mu.Unlock()
		return 0, store.ErrClosed
	}
	a := q.next
	if a == nil {
		a = &answer{done: make(chan struct{})}
		q.next = a
		select {
		case q.woke <- struct{}{}:
		default:
		}
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		q.answered.Add(1)
		return a.revision, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// take returns the answer that is wanted, nil if there is none.
func (q *question) take(end bool) *answer {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := q.next
	q.next, q.ended = nil, end
	return a
}

// run asks whenever a caller waits, until ctx ends.
func (q *question) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-q.woke:
		case <-ctx.Done():
			continue
		}
		if a := q.take(false); a != nil {
			a.revision, a.err = q.insist(ctx)
			close(a.done)
		}
	}
	if a := q.take(true); a != nil {
		a.err = store.ErrClosed
		close(a.done)
	}
}

// insist asks until etcd answers, or ctx ends.
func (q *question) insist(ctx context.Context) (int64, error) {
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		q.asked.Add(1)
		revision, err := q.ask(ctx)
		if err == nil || final(err) {
			return revision, err
		}
		if !pause(ctx, wait) {
			return 0, store.ErrClosed
		}
	}
}
