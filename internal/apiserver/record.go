// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// requestRecord is the state of one request across the stages. It implements the request's context and contains the
// response recorder, so that all three are one allocation.
type requestRecord struct {
	context.Context // the original context

	server  *Server
	request *http.Request // the original request
	info    *requestinfo.Info
	begun   time.Time
	answer  recorder

	trace      *explain.Trace      // of a write; nil: it is not traced
	allotted   context.Context     // ends at the request's deadline; nil: it has none
	ticket     *flowcontrol.Ticket // the request's seats; nil: it has none
	turn       *flowcontrol.Turn   // the request's turn on the processors; nil: it needs none
	inProcess  bool                // the client is a part of this process
	limited    bool                // counted by the limiter, which has no tickets
	routed     bool                // a kind and a verb were found
	deprecated bool                // the requested version is deprecated
	left       func()              // ends the count of a long-running request; nil for others
}

type recordKey struct{}

// Value implements [context.Context].
func (c *requestRecord) Value(key any) any {
	if _, ok := key.(recordKey); ok {
		return c
	}
	if key == flowcontrol.TurnKey {
		return c.turn
	}
	return c.Context.Value(key)
}

// recordOf returns the record of the request that ctx belongs to. Within the pipeline there always is one.
func recordOf(ctx context.Context) *requestRecord {
	c, _ := ctx.Value(recordKey{}).(*requestRecord)
	return c
}

// leaveSeat releases the request's seats, unless it has been called before.
func (c *requestRecord) leaveSeat() {
	switch {
	case c.ticket != nil:
		t := c.ticket
		c.ticket = nil
		t.Leave()
	case c.limited:
		c.limited = false
		c.server.limiter.Leave(c.request.Method)
	}
}
