// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"context"
	"net/http"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// maxWait is the maximum waiting time of any request.
const maxWait = time.Minute

// Ticket is the admission of one running request.
type Ticket struct {
	fair.Request
	c      *Controller
	schema *Schema
	who    user.Info
	info   *requestinfo.Info
	writes bool
}

// These headers tell a client how its request was classified. They contain the UIDs of schema and level rather than the
// names, which not all users may know.
var (
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
)

// Tell sets the headers on a response.
func (s *Schema) Tell(h http.Header) { h[schemaHeader], h[levelHeader] = s.uid, s.levelUID }

// Exempt reports whether requests of the schema's level never wait.
func (s *Schema) Exempt() bool { return s.level.exempt }

// Enter acquires the seats of a request, for which it may wait. False: the request is rejected, because its queue is full,
// it waited too long, or its client left. Begun is when the request arrived; after true the caller calls Leave. Waits, if
// it is not nil, is called before it waits.
func (c *Controller) Enter(ctx context.Context, begun time.Time, s *Schema, w fair.Work, info *requestinfo.Info, who user.Info,
	waits func()) (*Ticket, bool) {
	t := c.tickets.Get().(*Ticket)
	t.c, t.schema, t.who, t.info = c, s, who, info
	t.writes = writes(info.Verb)
	t.Work, t.Flow, t.Watch = w, s.flow, info.Verb == "watch"
	t.Distinguisher = s.distinguisher(info, who)
	t.Owner = t
	hash := s.hash(t.Distinguisher)

	l := s.level
	now := c.o.Now()
	l.mu.Lock()
	s.flow.Widths.Observe(float64(w.Seats()))
	decision := l.set.Start(now, hash, &t.Request)
	switch decision {
	case fair.Run:
		if !l.exempt {
			s.flow.Waited.Observe(0)
		}
	case fair.Full, fair.Busy:
		if !l.exempt {
			s.flow.Refused.Observe(0)
		}
	}
	l.mu.Unlock()

	switch decision {
	case fair.Wait:
		if waits != nil {
			waits()
		}
		if !t.wait(ctx, begun) {
			c.refused(t)
			return nil, false
		}
	case fair.Full, fair.Busy:
		c.refused(t)
		return nil, false
	}
	c.peaks.run(t.writes, 1, now)
	return t, true
}

// Refuse counts a request that was rejected before Enter.
func (c *Controller) Refuse(s *Schema) {
	l := s.level
	l.dropped.note(c.o.Now().Unix())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set.Rejected++
	s.flow.Full++
}

// Wait returns the maximum waiting time of a request that arrived at begun.
func (c *Controller) Wait(ctx context.Context, begun time.Time) time.Duration {
	limit := c.o.Wait
	if deadline, ok := ctx.Deadline(); ok {
		limit = deadline.Sub(begun) / 4
	}
	return min(limit, maxWait) - time.Since(begun)
}

func (c *Controller) refused(t *Ticket) {
	l := t.schema.level
	l.dropped.note(c.o.Now().Unix())
	c.reap(l)
	c.put(t)
}

// wait blocks until the request may run, or reports false if it may not.
func (t *Ticket) wait(ctx context.Context, begun time.Time) bool {
	t.c.peaks.wait(t.writes, 1, t.Arrived)
	defer func() { t.c.peaks.wait(t.writes, -1, t.c.o.Now()) }()
	timer := time.NewTimer(t.c.Wait(ctx, begun))
	defer timer.Stop()
	admitted := false
	select {
	case <-t.Admitted():
		admitted = true
	case <-ctx.Done():
	case <-timer.C:
	}
	now := t.c.o.Now()
	l := t.schema.level
	l.mu.Lock()
	defer l.mu.Unlock()
	if !admitted {
		admitted = !l.set.Cancel(now, &t.Request) // it may have been admitted meanwhile
	}
	t.Flow.Waited.Observe(now.Sub(t.Arrived).Seconds())
	return admitted
}

// Leave releases the seats.
func (t *Ticket) Leave() {
	c, l := t.c, t.schema.level
	now := c.o.Now()
	c.peaks.run(t.writes, -1, now)
	l.mu.Lock()
	took := now.Sub(t.Started).Seconds()
	if t.Watch {
		t.Flow.Watched.Observe(took)
	} else {
		t.Flow.Ran.Observe(took)
	}
	linger := l.set.Finish(now, &t.Request)
	l.mu.Unlock()
	if linger > 0 {
		time.AfterFunc(linger, t.release)
		return
	}
	c.reap(l)
	c.put(t)
}

func (t *Ticket) release() {
	c, l := t.c, t.schema.level
	l.mu.Lock()
	l.set.Release(c.o.Now(), &t.Request)
	l.mu.Unlock()
	c.reap(l)
	c.put(t)
}

// put recycles a finished ticket.
func (c *Controller) put(t *Ticket) {
	*t = Ticket{}
	c.tickets.Put(t)
}

// reap drops a removed level when its last request has left.
func (c *Controller) reap(l *level) {
	if !l.going.Load() {
		return
	}
	l.mu.Lock()
	idle := l.set.Idle()
	l.mu.Unlock()
	if idle {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.digest()
	}
}

// RetryAfter is the number of seconds after which a rejected client of the schema's level should retry: more when many were
// rejected recently.
func (c *Controller) RetryAfter(s *Schema) int64 { return max(s.level.dropped.after.Load(), 1) }

// writes reports whether a verb is one of those that change something.
func writes(verb string) bool { return verb != "get" && verb != "list" && verb != "watch" }
