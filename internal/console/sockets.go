// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"sync"
)

// mostSockets limits the WebSockets for watches that are open at the same time.
const mostSockets = 256

// sockets are the open WebSockets, which outlast what net/http knows of their requests. Its methods may be called by any goroutine.
type sockets struct {
	mu      sync.Mutex
	closed  bool
	n       int
	cancels map[int]context.CancelCauseFunc
	empty   sync.WaitGroup
}

func newSockets() *sockets { return &sockets{cancels: map[int]context.CancelCauseFunc{}} }

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
