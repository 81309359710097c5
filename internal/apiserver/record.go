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

// requestRecord is what one request carries from stage to stage. It is a part of the request's context itself, and holds the
// recorder of the answer, so that all three are one allocation.
type requestRecord struct {
	context.Context // that the request came with

	server  *Server
	request *http.Request // as it came
	info    *requestinfo.Info
	begun   time.Time
	answer  recorder

	trace      *explain.Trace      // of a write; nil: it is not kept
	allotted   context.Context     // ends when the request's time is over; nil: it has no bound
	ticket     *flowcontrol.Ticket // of the seats that the request has; nil: it has none
	turn       *flowcontrol.Turn   // that the request has of the processors; nil: it needs none
	inProcess  bool                // a part of this process asks
	limited    bool                // it is counted by the limiter, which has no tickets
	routed     bool                // a kind and a verb were found for it
	deprecated bool                // its version is
	left       func()              // counts a request that lasts out again; nil for others
}

type recordKey struct{}

// Value implements [context.Context].
func (c *requestRecord) Value(key any) any {
	if _, ok := key.(recordKey); ok {
		return c
	}
	return c.Context.Value(key)
}

// recordOf is the record of the request that ctx belongs to. Within the pipeline there is always one.
func recordOf(ctx context.Context) *requestRecord {
	c, _ := ctx.Value(recordKey{}).(*requestRecord)
	return c
}

// leaveSeat gives up what the request holds of flow control, if it has not yet.
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
