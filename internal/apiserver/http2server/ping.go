// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"golang.org/x/net/http2"
)

// Ping sends a PING to each client that is connected to a local address, or to every client if local is empty. It returns once each has
// answered or is gone. A client answers in the order of the connection. So it has then received all that was written to it before Ping, and
// the server has received all that the client wrote before its answer.
func (s *Server) Ping(ctx context.Context, local string) error {
	s.mu.Lock()
	var all []*conn
	for c := range s.conns {
		if c.at.is(local) {
			all = append(all, c)
		}
	}
	s.mu.Unlock()
	answers := make([]<-chan struct{}, len(all))
	for i, c := range all {
		answers[i] = c.ping()
	}
	for i, answer := range answers {
		select {
		case <-answer:
		case <-ctx.Done():
			return fmt.Errorf("%w: client %s has not answered a ping", context.Cause(ctx), all[i].remote)
		}
	}
	return nil
}

// Received returns the number of frames other than pings that the clients of Ping have sent so far.
func (s *Server) Received(local string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n uint64
	for _, at := range s.addresses {
		if at.is(local) {
			n += at.received
		}
	}
	for c := range s.conns {
		if c.at.is(local) {
			n += c.pings.frames.Load()
		}
	}
	return n
}

// pings is what Ping and Received need of one connection. The connection's mutex guards every field except frames.
type pings struct {
	frames  atomic.Uint64 // that the client has sent, except pings
	allowed bool          // the server's settings, which come first, were sent
	sent    uint64
	waiting map[uint64]chan struct{} // by the number that the ping carries
}

// end ends the wait for all answers.
func (p *pings) end() {
	for _, answered := range p.waiting {
		close(answered)
	}
	p.waiting = nil
}

// answer notes an answer; false: no ping of ours has this data.
func (p *pings) answer(data [8]byte) bool {
	n := binary.BigEndian.Uint64(data[:])
	answered, ok := p.waiting[n]
	if ok {
		close(answered)
		delete(p.waiting, n)
	}
	return ok
}

// ping sends a ping, and returns a channel that is closed when the client has answered or is gone.
func (c *conn) ping() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	answered := make(chan struct{})
	if c.err != nil || !c.pings.allowed {
		close(answered)
		return answered
	}
	p := &c.pings
	if p.waiting == nil {
		p.waiting = map[uint64]chan struct{}{}
	}
	p.sent++
	p.waiting[p.sent] = answered
	c.out.frame(http2.FramePing, 0, 0, binary.BigEndian.AppendUint64(nil, p.sent))
	c.flushApart()
	return answered
}
