// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"sync"
	"sync/atomic"
)

// mostSockets limits the WebSockets for watches that are open at the same time.
const mostSockets = 256

// allBytes limits the events of all watches of all connections that wait to be sent.
const allBytes = 64 << 20

// budget is the memory that events of all connections may take. Its methods may be called by any goroutine.
type budget struct {
	most int64
	used atomic.Int64
}

// take takes n bytes; false: there are not so many.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) <= b.most {
		return true
	}
	b.give(n)
	return false
}

// give gives n bytes back.
func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// sockets are the open WebSockets, which outlast what net/http knows of their requests. Its methods may be called by any goroutine.
type sockets struct {
	mu      sync.Mutex
	closed  bool
	n       int
	cancels map[int]context.CancelCauseFunc
	empty   sync.WaitGroup

	events budget
}

func newSockets() *sockets {
	return &sockets{cancels: map[int]context.CancelCauseFunc{}, events: budget{most: allBytes}}
}

// open counts a socket, whose context ends with the server; false: there are too many, or the server ends.
func (s *sockets) open(ctx context.Context) (_ context.Context, leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.cancels) >= mostSockets {
		return nil, nil, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s.n++
	n := s.n
	s.cancels[n] = cancel
	s.empty.Add(1)
	return ctx, func() {
		cancel(nil)
		s.mu.Lock()
		delete(s.cancels, n)
		s.mu.Unlock()
		s.empty.Done()
	}, true
}

// end ends all sockets and waits for them.
func (s *sockets) end() {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel(errLeaving)
	}
	s.mu.Unlock()
	s.empty.Wait()
}
