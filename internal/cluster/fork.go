// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/store"
)

// Forks share the first cluster's store copy-on-write, its certificates and its settings. A fork has a port of its own, but neither an API
// server nor controllers until it is used: the first connection or in-process request starts them, and waits for them. So a fork costs
// what a listener costs, and a test that asks nothing of a cluster starts none.

// origin is what a fork begins with, in place of what a start makes. Nothing writes to its engine.
type origin struct {
	engine   store.Engine // also a store.Forker
	material *serving.Material
	listener net.Listener // nil in a Cluster: the fork has no port
	inside   bool         // nothing of the fork listens
}

// Fork returns an independent cluster that begins at the newest revision of this one. Only a store in memory can be forked.
func (c *Cluster) Fork(ctx context.Context) (*Cluster, error) {
	return c.fork(ctx, c.settings, store.Forker.Fork, false)
}

// ForkInProcess is Fork without a port: only clients of this process reach the fork. No goroutine of it waits for the network, so that
// it can run in a bubble of testing/synctest. Its nodes are simulated and serve no API.
func (c *Cluster) ForkInProcess(ctx context.Context) (*Cluster, error) {
	return c.fork(ctx, c.settings, store.Forker.Fork, true)
}

// ForkAt returns an independent API server, without controllers and nodes, that begins at a revision of this cluster.
func (c *Cluster) ForkAt(ctx context.Context, revision int64) (*Cluster, error) {
	s := c.settings
	s.Controllers, s.Node, s.KubeconfigFile = []string{"none"}, "", ""
	return c.fork(ctx, s, func(f store.Forker) (store.Engine, error) { return f.ForkAt(revision) }, false)
}

func (c *Cluster) fork(
	ctx context.Context, s Settings, of func(store.Forker) (store.Engine, error), inside bool,
) (*Cluster, error) {
	from, ok := c.stored().(store.Forker)
	if !ok {
		return nil, errors.New("fork cluster: only a store in memory can be forked")
	}
	engine, err := of(from)
	if err != nil {
		return nil, fmt.Errorf("fork cluster: %w", err)
	}
	s.KubeconfigFile, s.local, s.Start.label = "", s.local.fork(), newLabel()
	f := &Cluster{nodeText: c.nodeText, material: c.material, ended: make(chan struct{})}
	f.origin = &origin{engine: engine, material: c.material, inside: inside || c.origin != nil && c.origin.inside}
	if f.origin.inside {
		f.settings = s
		f.access = access{admin: f.As(admin())}
		return f, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork cluster: %w", err), engine.Close())
	}
	s.Listen = l.Addr().String()
	f.settings, f.origin.listener, f.access = s, l, c.access.at(l)
	f.accepting.Go(f.accept)
	return f, nil
}

// stored returns the engine with the cluster's newest state; nil if it cannot be forked.
func (c *Cluster) stored() store.Engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil && c.origin != nil {
		return c.origin.engine
	}
	if c.now == nil {
		return nil
	}
	return c.now.engine
}

// accept accepts the connections of a fork until its listener is closed. The first one starts the cluster.
func (c *Cluster) accept() {
	for {
		conn, err := c.origin.listener.Accept()
		if err != nil {
			return // the fork is stopped
		}
		r, err := c.use()
		if err != nil {
			_ = conn.Close()
			continue
		}
		r.handed.give(conn)
	}
}

// use returns what runs, and starts a fork unless it runs. It reports why the fork cannot start.
func (c *Cluster) use() (*instance, error) {
	if c.origin == nil {
		return c.now, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.now != nil:
		return c.now, nil
	case c.failed != nil:
		return nil, c.failed
	case c.stopped:
		return nil, errors.New("the cluster is stopped")
	}
	engine, err := c.origin.engine.(store.Forker).Fork() // as fork checked
	if err == nil {
		s := c.settings
		h := &handed{address: nowhere, given: make(chan net.Conn), closed: make(chan struct{})}
		if l := c.origin.listener; l != nil {
			h.address = l.Addr()
		}
		s.origin = &origin{engine: engine, material: c.origin.material, listener: h, inside: c.origin.inside}
		// The start belongs to the cluster, not to the connection or the caller that happens to be the first.
		if c.now, _, err = startSteps(context.Background(), s, steps()); err == nil {
			c.now.handed = h
			go c.watch(c.now)
			return c.now, nil
		}
	}
	c.now, c.failed = nil, fmt.Errorf("start fork: %w", err)
	return nil, c.failed
}

// watch ends the cluster when a part of it ends by itself.
func (c *Cluster) watch(r *instance) {
	err := r.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == r { // neither stopped nor reset
		c.end(err)
	}
}

// Reset takes a fork back to where it began. Its clients stay valid; their connections end, and watches begin anew.
func (c *Cluster) Reset() error {
	if c.origin == nil {
		return errors.New("reset cluster: it is no fork")
	}
	c.mu.Lock()
	r := c.now
	c.now, c.failed = nil, nil
	c.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.Stop()
}

// handed is a listener of connections that a fork has accepted.
type handed struct {
	address net.Addr
	given   chan net.Conn
	closing sync.Once
	closed  chan struct{}
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
