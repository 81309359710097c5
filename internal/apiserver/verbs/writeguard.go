// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"sync"
	"time"
)

// writeGuard aborts a write to an HTTP/2 stream that the client does not take for writeTimeout. net/http has write deadlines for this, but
// each is set, and cleared after the write, by a message to the goroutine of the connection, which all its watches share: that took more
// than the event itself. The guard's timer runs on while writes come and go, and looks only when it fires.
//
// The zero value with abort set is ready. abort is not called after close has returned.
type writeGuard struct {
	abort func()

	mu     sync.Mutex
	since  time.Time   // when the write began that is under way; zero: none is
	timer  *time.Timer // nil: it does not run
	closed bool
}

// begin notes that a write begins.
func (g *writeGuard) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Now()
	if g.timer == nil {
		g.timer = time.AfterFunc(writeTimeout, g.look)
	}
}

// end notes that the write has ended.
func (g *writeGuard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Time{}
}

// look aborts a write that has taken too long. The timer of an idle stream ends, and begins again with the next write.
func (g *writeGuard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.since.IsZero() {
		g.timer = nil
		return
	}
	if left := writeTimeout - time.Since(g.since); left > 0 {
		g.timer.Reset(left)
		return
	}
	g.abort()
}

// close ends the guard.
func (g *writeGuard) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed = true; g.timer != nil {
		g.timer.Stop()
	}
}
