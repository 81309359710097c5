// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serverset lets a client reach the API servers of a cluster, of which some may be dead, without a load balancer: it connects to
// one of them, chosen at random, and to another one if that does not answer soon.
//
// A [Set] knows the servers' addresses and makes the connections. [Servers] is how a kubeconfig names the other servers of a cluster beside
// the one that stock clients use.
package serverset

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ServerName is a name that the certificate of each API server of a cluster has: that of the Service by which pods reach them.
const ServerName = "kubernetes.default.svc"

const (
	// patience is how long a server may take before the next one is tried beside it.
	patience = 250 * time.Millisecond
	// shunned is how long a server that could not be reached is tried after all others.
	shunned = 5 * time.Second
	// connectWait is how long one server may take.
	connectWait = 10 * time.Second
)

// Set is the API servers of one cluster. It is safe for concurrent use.
type Set struct {
	first  string // HOST:PORT
	dialer net.Dialer

	mu    sync.Mutex
	known []string             // addresses of all servers; empty: only the first is known
	bad   map[string]time.Time // when a server could not be reached
	spare map[string]net.Conn  // made by Live
}

// New returns the set of servers of which one is known, by its HOST:PORT.
func New(first string) *Set {
	s := &Set{first: first, bad: map[string]time.Time{}, spare: map[string]net.Conn{}}
	s.dialer = net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: silence, Interval: silence, Count: 2},
		Control:         control,
	}
	return s
}

// silence is after how long without an answer from the machine of a server, or from the network, a connection to it ends.
const silence = time.Second

// Learn makes addresses, each HOST:PORT, all that are known beside the first server. That one is tried if none of them can be reached,
// unless it is among them. None at all are not believed.
func (s *Set) Learn(addresses []string) {
	if len(addresses) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = slices.Clone(addresses)
	for at := range s.bad {
		if !slices.Contains(s.known, at) && at != s.first {
			delete(s.bad, at)
		}
	}
}

// order returns the addresses to try, one after the other.
func (s *Set) order(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.known)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	slices.SortStableFunc(all, func(a, b string) int {
		x, y := now.Sub(s.bad[a]) < shunned, now.Sub(s.bad[b]) < shunned
		switch {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	if !slices.Contains(all, s.first) {
		all = append(all, s.first)
	}
	return all
}

// mark records whether a server could be reached.
func (s *Set) mark(address string, reached bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reached {
		delete(s.bad, address)
	} else {
		s.bad[address] = time.Now()
	}
}

// Dial connects to a server. It is for rest.Config's Dial, with [ServerName] as the name that TLS verifies; the address is ignored.
func (s *Set) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	c, _, err := s.any(ctx, func(ctx context.Context, address string) (net.Conn, error) {
		if c := s.take(address); c != nil {
			return c, nil
		}
		return s.dialer.DialContext(ctx, network, address)
	})
	return c, err
}

// DialTLS returns a function for http.Transport's DialTLSContext: it connects to a server that the configuration verifies, the first one by
// its own name and the others by [ServerName]. The connection is a [*tls.Conn]. Dial makes the connections below it; nil: a [net.Dialer]
// does.
func (s *Set) DialTLS(
	config func() *tls.Config, dial func(ctx context.Context, network, address string) (net.Conn, error),
) func(ctx context.Context, network, address string) (net.Conn, error) {
	if dial == nil {
		dial = s.dialer.DialContext
	}
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, _, err := s.any(ctx, func(ctx context.Context, address string) (net.Conn, error) {
			raw, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			verified := config().Clone()
			if verified.ServerName = ServerName; address == s.first {
				if verified.ServerName, _, err = net.SplitHostPort(address); err != nil {
					return nil, errors.Join(err, raw.Close())
				}
			}
			secured := tls.Client(raw, verified)
			if err := secured.HandshakeContext(ctx); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
			return secured, nil
		})
		return c, err
	}
}

// Dialer returns the dialer of the set's connections: one that ends those to machines that are gone.
func (s *Set) Dialer() *net.Dialer { return &s.dialer }

// Live returns the address of a server that accepts connections. The next call of Dial that chooses it uses the connection.
func (s *Set) Live(ctx context.Context) (string, error) {
	c, address, err := s.any(ctx, func(ctx context.Context, address string) (net.Conn, error) {
		return s.dialer.DialContext(ctx, "tcp", address)
	})
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare[address] = c
	return address, nil
}

func (s *Set) take(address string) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.spare[address]
	delete(s.spare, address)
	return c
}

// attempt is how an attempt to connect has ended.
type attempt struct {
	address    string
	connection net.Conn
	err        error
}

// any connects to one of the servers: to the next one when one fails, and beside it when one takes long. The first connection is the
// result, and others are closed.
func (s *Set) any(ctx context.Context, connect func(ctx context.Context, address string) (net.Conn, error)) (net.Conn, string, error) {
	order := s.order(time.Now())
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	ended := make(chan attempt, len(order))
	var taken atomic.Bool
	next, running := 0, 0
	begin := func() {
		address := order[next]
		next++
		running++
		go func() { // ends with connect, whose context ends with this call
			c, err := connect(ctx, address)
			if err == nil && !taken.CompareAndSwap(false, true) {
				err = errors.Join(errors.New("another server was faster"), c.Close())
			}
			ended <- attempt{address, c, err}
		}()
	}
	begin()
	late := time.NewTimer(patience)
	defer late.Stop()
	var failed error
	for {
		select {
		case <-late.C:
			if next < len(order) {
				begin()
				late.Reset(patience)
			}
		case a := <-ended:
			running--
			if a.err == nil {
				s.mark(a.address, true)
				return a.connection, a.address, nil
			}
			if !taken.Load() {
				s.mark(a.address, false)
			}
			failed = errors.Join(failed, fmt.Errorf("connect to API server %s: %w", a.address, a.err))
			if next < len(order) && !taken.Load() {
				begin()
				late.Reset(patience)
			} else if running == 0 {
				return nil, "", failed
			}
		}
	}
}
