// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package bufferedconn buffers the writes of a handler to its connection. A chunk encoder, a buffer and TLS lie between
// the handler and the socket, and each may split a write: a batch of events of 10 KB leaves as four writes, of which
// those to the socket are by far the most expensive. A handler that holds the connection while it writes, and then
// releases it, sends them as one, as with TCP_CORK.
//
//	conn := bufferedconn.FromContext(ctx)
//	conn.Hold()
//	…write, flush…
//	err := conn.Release()
//
// It is for HTTP/1.x, where a connection serves one request at a time. A [Conn] is safe for concurrent use; a nil Conn buffers nothing.
package bufferedconn

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
)

// most is the maximum size of the buffer of a held connection.
const most = 64 << 10

// bufferPool holds the buffers of connections that are not held.
type bufferPool struct{ sync.Pool }

// Listener accepts connections that can be held.
type Listener struct {
	net.Listener
	buffers bufferPool
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
	buffers *bufferPool

	mu   sync.Mutex
	held bool
	buf  *[]byte
}

// Write sends p, or buffers it while the connection is held. The next Write or Release returns an error of sending the buffer.
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

// send writes the buffer.
func (c *Conn) send() error {
	if c.buf == nil || len(*c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(*c.buf)
	*c.buf = (*c.buf)[:0]
	return err
}

// Hold buffers writes from now on.
func (c *Conn) Hold() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = true
}

// Release sends the buffer, and ends buffering.
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

// NewContext returns a context with the connection, if a [Listener] accepted it, also below TLS.
func NewContext(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if own, ok := c.(*Conn); ok {
		return context.WithValue(ctx, key{}, own)
	}
	return ctx
}

// FromContext returns the connection of a request; nil if it cannot be held.
func FromContext(ctx context.Context) *Conn {
	c, _ := ctx.Value(key{}).(*Conn)
	return c
}
