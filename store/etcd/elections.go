// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync/atomic"
	"time"
)

// lateTime is how much later than the answer to a question the answer to an older transaction may come.
const lateTime = 100 * time.Millisecond

// elections finds transactions that are lost with etcd's leader: a member passes them on to the leader, and when that dies, it neither
// sends them to the next one nor tells its clients before its own time of seven seconds is over.
//
// A question is answered by a member that has carried out all that its leader knew when it was asked. So if the leader is of a newer term
// than the one in which a transaction was sent, and the transaction still has no answer, it is lost.
type elections struct {
	ask  func(ctx context.Context) (int64, error) // notes the term of the answer
	term atomic.Uint64                            // the newest of all answers
}

// saw notes the term of an answer.
func (e *elections) saw(term uint64) {
	for last := e.term.Load(); term > last && !e.term.CompareAndSwap(last, term); last = e.term.Load() {
	}
}

// doubt returns a function for a transaction that is sent now and takes long. Its first call begins to ask, until ctx ends, and calls lost
// if the transaction is lost. The function is for one goroutine at a time.
func (e *elections) doubt(ctx context.Context, lost context.CancelFunc) func() {
	term, begun := e.term.Load(), false
	return func() {
		if !begun {
			begun = true
			go e.find(ctx, term, lost)
		}
	}
}

// find asks until ctx ends, or the leader is of a newer term.
func (e *elections) find(ctx context.Context, term uint64, lost context.CancelFunc) {
	for {
		if _, err := e.ask(ctx); err != nil {
			return
		}
		if e.term.Load() > term {
			if pause(ctx, lateTime) {
				lost()
			}
			return
		}
		if !pause(ctx, overtakenTime) {
			return
		}
	}
}
