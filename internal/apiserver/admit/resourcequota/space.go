// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// shutFor bounds how long writes wait for the first count of a quota.
const shutFor = time.Second

// space is the state of a namespace with quotas.
type space struct {
	mu       sync.Mutex
	queue    []*work // waits to be checked
	busy     bool    // a goroutine checks the queue
	underway map[chan struct{}]struct{}
	gate     chan struct{} // not nil while objects are counted for limits that are not in force yet
	timer    *time.Timer

	// accounts are the last values written to each quota. Only the checking goroutine uses them.
	accounts map[types.UID]*accountOf
}

// accountOf is the state of one quota: its used when it was last read or written here, and how often others changed it.
type accountOf struct {
	used  corev1.ResourceList
	epoch int
}

func newSpace() *space {
	return &space{underway: map[chan struct{}]struct{}{}, accounts: map[types.UID]*accountOf{}}
}

// enter begins a write, which ends when the returned function is called. It waits while the namespace's objects are
// being counted.
func (s *space) enter(ctx context.Context) (end func(), err error) {
	done := make(chan struct{})
	for {
		s.mu.Lock()
		gate := s.gate
		if gate == nil {
			s.underway[done] = struct{}{}
			s.mu.Unlock()
			return func() { s.leave(done) }, nil
		}
		s.mu.Unlock()
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *space) leave(done chan struct{}) {
	s.mu.Lock()
	delete(s.underway, done)
	s.mu.Unlock()
	close(done)
}

// drain waits until all begun writes have ended.
func (s *space) drain(ctx context.Context) {
	s.mu.Lock()
	waits := make([]chan struct{}, 0, len(s.underway))
	for done := range s.underway {
		waits = append(waits, done)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return // this count may miss the write; the next one includes it
		}
	}
}

// shut makes new writes wait until open is called, for shutFor at most.
func (s *space) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate == nil {
		s.gate = make(chan struct{})
		s.timer = time.AfterFunc(shutFor, s.open)
	}
}

func (s *space) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		close(s.gate)
		s.gate = nil
		s.timer.Stop()
	}
}
