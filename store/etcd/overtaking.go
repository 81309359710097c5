// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync/atomic"
	"time"
)

// overtakenTime is how much later an answered transaction must have been sent than one without an answer, so that that one counts as lost.
const overtakenTime = 500 * time.Millisecond

// overtaking finds transactions that are lost while etcd works: a member that was stopped as the leader, and goes on, takes them before it
// learns of the new leader, and lets them wait for its own time, which is longer than a client's. Since etcd carries out transactions in
// the order of their arrival, one that was sent half a second before another, which is answered, is not late but lost. The zero value is
// ready.
type overtaking struct {
	began atomic.Pointer[time.Time] // when the last of the answered transactions was sent
}

// watch calls lost if the transaction that is sent now, and waits until ctx ends, has been overtaken. Meanwhile it calls doubt after each
// overtakenTime. The caller calls one of the results: answered after an answer, stop without one.
func (o *overtaking) watch(ctx context.Context, lost context.CancelFunc, doubt func()) (answered, stop func()) {
	begun := time.Now()
	first := o.look(ctx, begun, lost, doubt)
	stop = func() { first.Stop() }
	return func() {
		stop()
		for {
			last := o.began.Load()
			if last != nil && !last.Before(begun) || o.began.CompareAndSwap(last, &begun) {
				return
			}
		}
	}, stop
}

// look looks after overtakenTime, and then again and again until ctx ends.
func (o *overtaking) look(ctx context.Context, begun time.Time, lost context.CancelFunc, doubt func()) *time.Timer {
	return time.AfterFunc(overtakenTime, func() {
		switch last := o.began.Load(); {
		case ctx.Err() != nil:
		case last != nil && last.Sub(begun) >= overtakenTime:
			lost()
		default:
			doubt()
			o.look(ctx, begun, lost, doubt)
		}
	})
}
