// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// conn is a connection: its streams, and what it writes. One goroutine reads it, see reader; handlers write to it.
type conn struct {
	server  *Server
	tls     *tls.Conn
	handler http.Handler
	end     context.CancelFunc // of the context of all requests
	state   *tls.ConnectionState
	remote  string
	at      *address
	steps   steps

	mu      sync.Mutex
	err     error // why the connection takes no more frames; nil while it does
	streams map[uint32]*stream
	last    uint32 // the highest stream of the client's
	running int    // handlers
	queue   []*stream
	going   bool // GOAWAY was sent: no stream begins any more
	unacked int  // settings of ours that the client has not acknowledged
	idle    idleness
	window  recvWindow
	out     output
	pings   pings
}

// idleness is how long a connection has had no request. The connection's mutex guards it.
type idleness struct {
	frames int // without effect since the last request
	from   time.Time
	timer  *time.Timer // nil: the connection may be idle for ever
}

func newConn(s *Server, t *tls.Conn, h http.Handler) *conn {
	state := t.ConnectionState()
	c := &conn{server: s, tls: t, handler: h, state: &state, remote: t.RemoteAddr().String(), streams: map[uint32]*stream{}}
	c.window.left = s.o.ConnWindow
	c.steps.conn, c.steps.work = c, func() { c.at.workers.run(&c.steps) }
	c.out.init(t, s.o.Take)
	return c
}

// serve reads the connection until it ends, and waits for nothing else: handlers may run on.
func (c *conn) serve(ctx context.Context) {
	defer c.tls.Close()
	ctx, c.end = context.WithCancel(ctx)
	r := newReader(c)
	err := r.begin()
	if err == nil {
		err = r.read(ctx)
	}
	if code := http2.ConnectionError(0); errors.As(err, &code) {
		c.linger(http2.ErrCode(code))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(errors.New("http2: client disconnected"))
	if c.idle.timer != nil {
		c.idle.timer.Stop()
	}
}

// overrun ends a connection whose client sends what must be answered and does not read the answers. c.mu is held.
func (c *conn) overrun() error {
	if c.out.control > maxControlFrames || c.idle.frames > maxIdleFrames {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// flush writes the frames that wait, or leaves it to the goroutine that is writing. others is how many other streams are likely to write at
// about the same time. c.mu is held; it is given up meanwhile.
func (c *conn) flush(others int) {
	more, err := c.out.flush(&c.mu, others)
	if err != nil {
		c.fail(err)
		_ = c.tls.Close() // the reader returns
	}
	if more {
		c.flushApart()
	}
}

// flushApart has another goroutine flush, which ends when all is written. c.mu is held.
func (c *conn) flushApart() {
	if c.out.writing || len(c.out.buf) == 0 {
		return
	}
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.flush(0)
	}()
}

// fail ends all streams with an error. c.mu is held.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.end()
	for _, st := range c.streams {
		st.abort(err)
	}
	c.streams = map[uint32]*stream{}
	c.queue = nil
	c.pings.end()
}

// linger tells the client why the connection ends, and reads on for a moment: data that is not read when a connection is closed takes the
// GOAWAY with it.
func (c *conn) linger(code http2.ErrCode) {
	_ = c.tls.SetWriteDeadline(time.Now().Add(lingerTime))
	c.mu.Lock()
	c.goaway(code)
	c.fail(http2.ConnectionError(code))
	_ = c.out.drain(&c.mu) // the client may have gone
	c.mu.Unlock()
	_ = c.tls.CloseWrite()
	_ = c.tls.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.tls, lingerBytes)
}

// goaway appends GOAWAY, once. c.mu is held.
func (c *conn) goaway(code http2.ErrCode) {
	if c.going && code == http2.ErrCodeNo {
		return
	}
	c.going = true
	c.out.goaway(c.last, code)
}

// leave ends the connection when its requests have ended.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.depart()
	c.flush(0)
}

// depart says that no further streams begin. c.mu is held.
func (c *conn) depart() {
	c.goaway(http2.ErrCodeNo)
	c.quit()
}

// quit ends the connection's reader if the connection is to end and has no streams. c.mu is held. The client has lingerTime to take what
// is left, and to close the connection itself.
func (c *conn) quit() {
	if c.going && len(c.streams) == 0 && c.err == nil {
		_ = c.tls.SetReadDeadline(time.Now().Add(lingerTime))
	}
}

// rest ends a connection that has had no request for the idle time.
func (c *conn) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.going {
		return
	}
	left := c.server.o.Idle
	if len(c.streams) == 0 {
		if left -= time.Since(c.idle.from); left <= 0 {
			c.depart()
			c.flush(0)
			return
		}
	}
	c.idle.timer.Reset(left)
}

// remove drops a stream that has ended on both sides. c.mu is held.
func (c *conn) remove(st *stream) {
	if c.streams[st.id] != st {
		return
	}
	delete(c.streams, st.id)
	if len(c.streams) == 0 {
		c.idle.from = time.Now()
		c.quit()
	}
}

// reset ends a stream with an error, and tells the client. c.mu is held.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	if st := c.streams[id]; st != nil {
		st.abort(http2.StreamError{StreamID: id, Code: code})
		c.remove(st)
	}
	c.out.rst(id, code)
}

// ended notes that a handler has returned, and begins a request that waited for it.
func (c *conn) ended(st *stream) {
	c.mu.Lock()
	c.running--
	if st.flushes {
		c.out.flushing--
	}
	var next *stream
	for len(c.queue) > 0 && next == nil {
		next, c.queue = c.queue[0], c.queue[1:]
		if next.err != nil {
			next = nil // reset while it waited
		}
	}
	if next != nil {
		c.running++
	}
	c.mu.Unlock()
	if next != nil {
		c.at.workers.run(next)
	}
}

// appendSettings appends settings as a frame's payload.
func appendSettings(b []byte, all ...http2.Setting) []byte {
	for _, s := range all {
		b = append(b, byte(s.ID>>8), byte(s.ID), byte(s.Val>>24), byte(s.Val>>16), byte(s.Val>>8), byte(s.Val))
	}
	return b
}
