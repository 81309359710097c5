// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"runtime/pprof"
	"sync"
)

// handed is a listener of connections that another part of this process has accepted.
type handed struct {
	address net.Addr
	given   chan net.Conn
	closing sync.Once
	closed  chan struct{}
}

func newHanded(address net.Addr) *handed {
	return &handed{address: address, given: make(chan net.Conn), closed: make(chan struct{})}
}

// give hands a connection over. It closes the connection if the listener is closed.
func (h *handed) give(c net.Conn) {
	select {
	case h.given <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// Accept implements [net.Listener].
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.given:
		if of, ok := c.(*connection); ok {
			// The goroutine that serves the connection inherits the label from the one that accepts it, which is this one.
			pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(goroutinesOf, of.label)))
		}
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements [net.Listener].
func (h *handed) Addr() net.Addr { return h.address }

// Close implements [net.Listener].
func (h *handed) Close() error {
	h.closing.Do(func() { close(h.closed) })
	return nil
}

// connections are the open connections of a fork. The zero value has none.
type connections struct {
	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
}

// connection is one of them.
type connection struct {
	net.Conn
	of    *connections
	label string // of the fork's goroutines
}

// add counts a connection until it is closed. After close it closes the connection, and returns nil.
func (o *connections) add(c net.Conn, label string) net.Conn {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		_ = c.Close()
		return nil
	}
	if o.open == nil {
		o.open = map[*connection]struct{}{}
	}
	counted := &connection{Conn: c, of: o, label: label}
	o.open[counted] = struct{}{}
	return counted
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// close closes all connections.
func (o *connections) close() {
	o.mu.Lock()
	o.closed = true
	open := o.open
	o.open = nil
	o.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
}
