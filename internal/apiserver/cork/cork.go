// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cork gathers what a handler writes to its connection. Between the handler and the socket stand a chunk encoder, a
// buffer and TLS, and each may make pieces of its own: a batch of events of 10 KB leaves as four writes, of which the
// socket's are by far the most expensive. A handler that holds the connection while it writes, and then releases it, has
// them leave as one.
//
//	conn := cork.From(ctx)
//	conn.Hold()
//	…write, flush…
//	err := conn.Release()
//
// It is for HTTP/1.x, where a connection belongs to one request at a time. A [Conn] may be used by many goroutines; nil is
// one that holds nothing.
package cork

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// most is how much is gathered before it is sent although the connection is held.
const most = 64 << 10

// gathers keeps buffers for the time that a connection is held.
type gathers struct{ sync.Pool }

// Listener accepts connections that can be held.
type Listener struct {
	net.Listener
	buffers gathers
}

// Listen wraps a listener.
func Listen(l net.Listener) *Listener { return &Listener{Listener: l} }

// Accept waits for the next connection, which is a [*Conn].
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c, buffers: &l.buffers}, nil
}

// Conn is a connection that can be held.
type Conn struct {
	net.Conn
	buffers *gathers

	mu   sync.Mutex
	held bool
	buf  *[]byte
}

// Write sends p, or keeps it while the connection is held. An error of what was kept is returned by the next Write or by
// Release.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held {
		return c.Conn.Write(p)
	}
	if c.buf == nil {
		if c.buf, _ = c.buffers.Get().(*[]byte); c.buf == nil {
			b := make([]byte, 0, most)
			c.buf = &b
		}
	}
	if len(*c.buf)+len(p) > most {
		if err := c.send(); err != nil {
			return 0, err
		}
		if len(p) > most {
			return c.Conn.Write(p)
		}
	}
	*c.buf = append(*c.buf, p...)
	return len(p), nil
}

// send writes what is kept.
func (c *Conn) send() error {
	if c.buf == nil || len(*c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(*c.buf)
	*c.buf = (*c.buf)[:0]
	return err
}

// Hold keeps what is written from now on.
func (c *Conn) Hold() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// Release sends what was kept, and holds no more.
func (c *Conn) Release() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = false
	err := c.send()
	if c.buf != nil {
		c.buffers.Put(c.buf)
		c.buf = nil
	}
	return err
}

type key struct{}

// Context remembers a connection that [Listener] accepted, also beneath TLS.
func Context(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if own, ok := c.(*Conn); ok {
		return context.WithValue(ctx, key{}, own)
	}
	return ctx
}

// From is the connection that a request came over; nil if it cannot be held.
func From(ctx context.Context) *Conn {
	c, _ := ctx.Value(key{}).(*Conn)
	return c
}
