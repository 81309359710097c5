// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/store"
)

// Forks share the first cluster's store copy-on-write, its certificates and its settings. A fork has a port of its own, but neither an API
// server nor controllers until a request may change it: until then the API server of its base answers, which all forks of a state share. So
// a fork costs what a listener costs, and a test that asks nothing of a cluster starts none.

// origin is what a fork begins with, in place of what a start makes.
type origin struct {
	engine   store.Engine // also a store.Forker; only expiries change it
	material *serving.Material
	listener net.Listener // nil in a Cluster: the fork has no port
	inside   bool         // nothing of the fork listens
	base     *base        // of a Cluster with a port; nil: it has none
}

// Fork returns an independent cluster that begins at the newest revision of this one. Only a store in memory can be forked.
func (c *Cluster) Fork(ctx context.Context) (*Cluster, error) {
	if isInside(c) {
		return c.ForkInProcess(ctx)
	}
	from, err := forker(c)
	if err != nil {
		return nil, err
	}
	b, err := c.bases.newestOf(from, c)
	if err != nil {
		return nil, fmt.Errorf("fork cluster: %w", err)
	}
	return forkOf(ctx, c, c.settings, b)
}

// ForkInProcess is Fork without a port: only clients of this process reach the fork. No goroutine of it waits for the network, so that
// it can run in a bubble of testing/synctest. Its nodes are simulated and serve no API.
func (c *Cluster) ForkInProcess(context.Context) (*Cluster, error) {
	from, err := forker(c)
	if err != nil {
		return nil, err
	}
	engine, err := from.Fork()
	if err != nil {
		return nil, fmt.Errorf("fork cluster: %w", err)
	}
	return forkInside(c, c.settings, engine), nil
}

// ForkAt returns an independent API server, without controllers and nodes, that begins at a revision of this cluster.
func (c *Cluster) ForkAt(ctx context.Context, revision int64) (*Cluster, error) {
	from, err := forker(c)
	if err != nil {
		return nil, err
	}
	engine, err := from.ForkAt(revision)
	if err != nil {
		return nil, fmt.Errorf("fork cluster: %w", err)
	}
	s := c.settings
	s.Controllers, s.Node = []string{"none"}, ""
	if isInside(c) {
		return forkInside(c, s, engine), nil
	}
	return forkOf(ctx, c, s, newBase(engine, s, c.material))
}

// forker returns the store, if it can be forked.
func forker(c *Cluster) (store.Forker, error) {
	from, ok := c.stored().(store.Forker)
	if !ok {
		return nil, errors.New("fork cluster: only a store in memory can be forked")
	}
	return from, nil
}

// forkOf returns a fork that begins at a base, with a port. It leaves the base at its end, and if it returns an error.
func forkOf(ctx context.Context, c *Cluster, s Settings, b *base) (*Cluster, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork cluster: %w", err), b.leave())
	}
	s.Listen = l.Addr().String()
	f := newFork(c, s, &origin{engine: b.engine, material: c.material, listener: l, base: b})
	f.access = c.access.at(l)
	b.forks.Store(s.Listen, f)
	f.accepting.Go(f.accept)
	return f, nil
}

// forkInside returns a fork without a port.
func forkInside(c *Cluster, s Settings, engine store.Engine) *Cluster {
	f := newFork(c, s, &origin{engine: engine, material: c.material, inside: true})
	f.access = access{admin: f.As(admin())}
	return f
}

func newFork(c *Cluster, s Settings, o *origin) *Cluster {
	s.KubeconfigFile, s.local, s.Start.label = "", s.local.fork(), newLabel()
	return &Cluster{settings: s, nodeText: c.nodeText, material: c.material, origin: o, ended: make(chan struct{})}
}

// isInside reports whether the cluster is a fork without a port.
func isInside(c *Cluster) bool { return c.origin != nil && c.origin.inside }

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

// accept accepts the connections of a fork until its listener is closed.
func (c *Cluster) accept() {
	for {
		conn, err := c.origin.listener.Accept()
		if err != nil {
			return // the fork is stopped
		}
		r, err := c.origin.base.read()
		if err != nil {
			_ = conn.Close()
			continue
		}
		if conn = c.connections.add(conn, c.settings.Start.label); conn != nil {
			r.connections.give(conn)
		}
	}
}

// untouched reports whether nothing has happened in a fork yet, so that it is as its base.
func (c *Cluster) untouched() bool {
	return c.origin != nil && c.origin.base != nil && c.serving.Load() == nil
}

// begin starts a fork in the background, unless nothing happens in it by itself.
func (c *Cluster) begin() {
	if c.origin == nil || slices.Equal(c.settings.Controllers, []string{"none"}) {
		return
	}
	c.beginning.Lock()
	defer c.beginning.Unlock()
	if c.begun || c.ending {
		return
	}
	c.begun = true
	labelled(c.settings.Start.label, func() {
		c.accepting.Go(func() { _, _ = c.use() }) // the next request that needs the fork gets the error
	})
}

// use returns what runs, and starts a fork unless it runs. It reports why the fork cannot start.
func (c *Cluster) use() (*instance, error) {
	if c.origin == nil {
		return c.now, nil
	}
	if r := c.serving.Load(); r != nil {
		return r, nil
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
	engine, err := c.origin.engine.(store.Forker).Fork() // as forker checked
	if err == nil {
		s := c.settings
		address := net.Addr(nowhere)
		if l := c.origin.listener; l != nil {
			address = l.Addr()
		}
		s.origin = &origin{engine: engine, material: c.origin.material, listener: newHanded(address), inside: c.origin.inside}
		// The start belongs to the cluster, not to the connection or the caller that happens to be the first.
		if c.now, _, err = startSteps(context.Background(), s, steps()); err == nil {
			c.serving.Store(c.now)
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

// Reset takes a fork back to where it began. Its clients stay valid, and watches begin anew.
func (c *Cluster) Reset() error {
	if c.origin == nil {
		return errors.New("reset cluster: it is no fork")
	}
	c.mu.Lock()
	r := c.now
	c.now, c.failed = nil, nil
	c.serving.Store(nil)
	c.mu.Unlock()
	c.beginning.Lock()
	c.begun = false
	c.beginning.Unlock()
	if r == nil {
		return nil
	}
	return r.Stop()
}
