// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"sync"
	"time"
)

// steps are the responses of a connection that go on and were woken. One worker takes their steps, one after the other, and flushes after
// the last one: what many watches tell their client of a change wakes one goroutine, and leaves in one write. A worker whose step takes
// long, because it waits for the client or an extension, leaves the others to another worker.
//
// Worked example: a change wakes 25 watches of a connection. The first one has a worker begin, the others join the queue. The worker
// appends the frames of three; the fourth watch has no room in its stream's window. So the worker passes the turn: another one takes the
// other 21 steps, and writes the frames of all 24. The first worker waits until the fourth watch has room, and flushes by itself.
type steps struct {
	conn *conn
	work func() // has a worker serve them

	mu    sync.Mutex
	due   []*stream // from at on
	at    int
	turn  uint64      // the number of the worker that takes the steps, from 1 on; others before it may be amid one
	phase phase       // of that worker
	late  *time.Timer // passes the turn; nil: there was no worker yet
}

// phase is how far a worker is.
type phase int

const (
	idle  phase = iota // there is none
	woken              // it is to begin
	begun
)

// rouse notes that a response was woken. It returns what has a worker begin, nil if there is one already.
func (s *steps) rouse(st *stream) (begin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = append(s.due, st)
	if s.phase != idle {
		return nil
	}
	s.grant()
	return s.work
}

// grant gives the turn to a worker that is to begin. The caller holds mu.
func (s *steps) grant() {
	s.turn++
	s.phase = woken
}

// serve takes the steps that are due, as a worker.
func (s *steps) serve() {
	turn := s.begin()
	for st := s.next(turn); st != nil; st = s.next(turn) {
		st.turn = turn
		st.goOn()
	}
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.conn.flush(0)
}

// begin returns the number of the worker that begins.
func (s *steps) begin() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = begun
	if s.late == nil {
		s.late = time.AfterFunc(longStep, s.overdue)
	} else {
		s.late.Reset(longStep)
	}
	return s.turn
}

// next returns the next response whose step is due; nil: there is none, or it is another worker's turn.
func (s *steps) next(turn uint64) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != turn || s.phase != begun {
		return nil
	}
	if s.at == len(s.due) {
		s.due, s.at, s.phase = s.due[:0], 0, idle
		s.late.Stop()
		return nil
	}
	st := s.due[s.at]
	s.due[s.at] = nil
	if s.at++; s.at > 64 && 2*s.at > len(s.due) {
		left := copy(s.due, s.due[s.at:])
		clear(s.due[left:])
		s.due, s.at = s.due[:left], 0
	}
	return st
}

// has reports whether it is the turn of a worker, which flushes later then.
func (s *steps) has(turn uint64) bool {
	if turn == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn == turn && s.phase == begun
}

// pass ends the turn of a worker amid a step, and has another one take the steps that are due. The caller flushes what was appended.
func (s *steps) pass(turn uint64) {
	if s.yield(turn) {
		s.work()
	}
}

// yield ends the turn, and reports whether another worker is to begin.
func (s *steps) yield(turn uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != turn || s.phase != begun {
		return false
	}
	s.phase = idle
	if s.at == len(s.due) {
		return false
	}
	s.grant()
	return true
}

// overdue passes the turn of a worker that has had it for long, and flushes what was appended.
func (s *steps) overdue() {
	s.mu.Lock()
	turn := s.turn
	s.mu.Unlock()
	s.pass(turn)
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.conn.flush(0)
}
