// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// relay passes connections on to a member, until it is blocked: then it ends them and accepts none.
type relay struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	blocked bool
	open    map[net.Conn]struct{}
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	r := &relay{listener: l, to: strings.TrimPrefix(to, "http://"), open: map[net.Conn]struct{}{}}
	var served sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		r.block()
		served.Wait()
	})
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { r.pass(c) })
		}
	})
	return r
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() }

// keep notes a connection to be ended by block, and reports whether it may go on.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blocked {
		c.Close()
		return false
	}
	r.open[c] = struct{}{}
	return true
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	if !r.keep(c) {
		return
	}
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !r.keep(to) {
		return
	}
	splice(c, to)
}

// splice passes on what two connections send until one of them ends, and closes both.
func splice(a, b net.Conn) {
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(a, b)
		a.Close()
	})
	_, _ = io.Copy(b, a)
	b.Close()
	back.Wait()
}

func (r *relay) block() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = true
	for c := range r.open {
		c.Close()
	}
	clear(r.open)
}

func (r *relay) unblock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blocked = false
}
