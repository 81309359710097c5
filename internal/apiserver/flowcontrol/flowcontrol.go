// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package flowcontrol bounds what is under way at once, so that load ends in 429 and not in a dead server.
//
// [Limiter] holds two bounds, for requests that read and for those that write; watches and streams are not counted, nor
// are administrators, who must be able to mend an overloaded server.
package flowcontrol

import (
	"net/http"
	"sync/atomic"
)

// Limiter counts requests under way. A bound of 0 is none.
type Limiter struct {
	MaxReads, MaxWrites int64

	reads, writes atomic.Int64
}

// Enter counts a request in, and returns how to count it out; nil when there is no room.
func (l *Limiter) Enter(method string) (leave func()) {
	n, bound := &l.writes, l.MaxWrites
	if method == http.MethodGet || method == http.MethodHead {
		n, bound = &l.reads, l.MaxReads
	}
	if now := n.Add(1); bound > 0 && now > bound {
		n.Add(-1)
		return nil
	}
	return func() { n.Add(-1) }
}
