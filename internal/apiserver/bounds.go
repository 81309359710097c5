// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
)

// Bounds configure the outermost stage: they prevent clients from exhausting the server's memory. A nil bound has a
// default, 0 is no bound.
type Bounds struct {
	// Connections is the maximum number of open connections, ConnectionsPerClient that of one address other than the
	// machine's own; nil: 20000 and 2000.
	Connections, ConnectionsPerClient *int
	// Streams is the maximum number of concurrent requests of one HTTP/2 connection; nil: 1000.
	Streams *int
	// HTTP2 serves the HTTP/2 connections; nil: net/http does.
	HTTP2 *http2server.Server
	// BodyBytes is the maximum size of all request bodies in flight, except administrators'; nil: an eighth of the
	// machine's memory, between 64 MiB and 1 GiB.
	BodyBytes *int64
	// Watches is the maximum number of watches and streams of one user, except administrators; nil: 10000.
	Watches *int
	// GoawayChance is the probability that a request closes its HTTP/2 connection by GOAWAY.
	GoawayChance float64
	// Spread sends clients away to other servers; nil: there are none.
	Spread *Spread
}

const (
	maxHeader  = 1 << 20 // maximum bytes of a request's headers
	maxBody    = 3 << 20 // maximum bytes of a request's body; reading more fails
	maxStreams = 1000
	// headPart is the size of the request head up to which a watch or stream counts as one; each further headPart
	// counts as one more.
	headPart = 32 << 10
)

// bounds counts requests against the Bounds.
type bounds struct {
	bodies     atomic.Int64
	bodyLimit  int64 // 0: none
	watchLimit int

	mu      sync.Mutex
	watches map[string]int // by user
}

func newBounds(o *Bounds) *bounds {
	b := &bounds{watchLimit: ptr.Deref(o.Watches, 10_000), watches: map[string]int{}}
	if o.BodyBytes != nil {
		b.bodyLimit = *o.BodyBytes
	} else {
		b.bodyLimit = min(max(machineMemory()/8, 64<<20), 1<<30)
	}
	return b
}

// machineMemory returns the machine's memory in bytes; 0 if unknown.
func machineMemory() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "MemTotal:")
	line, _, _ := strings.Cut(rest, "\n")
	kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	return kb << 10
}

// body reserves memory for a request's body; false: there is not enough.
func (b *bounds) body(r *http.Request, who user.Info) (leave func(), ok bool) {
	n := r.ContentLength
	if n == 0 || b.bodyLimit == 0 || administrator(who) {
		return nil, true
	}
	if n < 0 || n > maxBody {
		n = maxBody
	}
	if b.bodies.Add(n) > b.bodyLimit {
		b.bodies.Add(-n)
		return nil, false
	}
	return func() { b.bodies.Add(-n) }, true
}

// weight returns how many watches a long-running request counts as. Its head stays in memory as long as it runs; most
// are small.
func weight(r *http.Request) int {
	n := len(r.URL.Path) + len(r.URL.RawQuery)
	for k, vs := range r.Header {
		for _, v := range vs {
			n += len(k) + len(v)
		}
	}
	return 1 + n/headPart
}

// lasting counts a long-running request with a weight; false: its user has too many.
func (b *bounds) lasting(who user.Info, weight int) (leave func(), ok bool) {
	if b.watchLimit == 0 || who == nil || administrator(who) {
		return func() {}, true
	}
	name := who.GetName()
	weight = min(weight, b.watchLimit) // a single request always fits
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[name]+weight > b.watchLimit {
		return nil, false
	}
	b.watches[name] += weight
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.watches[name] -= weight; b.watches[name] == 0 {
			delete(b.watches, name)
		}
	}, true
}

// goaway sends GOAWAY on some of the HTTP/2 connections.
func goaway(chance float64, next http.Handler) http.Handler {
	if chance <= 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && rand.Float64() < chance {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// connections bounds the number of open connections of all listeners together. It closes further ones immediately, except
// those from the machine itself, so that administrators can always connect.
type connections struct {
	most, mostOfOne int // 0: no limit

	mu    sync.Mutex
	open  int
	byOne map[netip.Addr]int
}

func (o *Bounds) connections() *connections {
	return &connections{
		most: ptr.Deref(o.Connections, 20_000), mostOfOne: ptr.Deref(o.ConnectionsPerClient, 2_000), byOne: map[netip.Addr]int{},
	}
}

// listen returns a listener that counts its connections.
func (c *connections) listen(l net.Listener) net.Listener {
	if c.most == 0 && c.mostOfOne == 0 {
		return l
	}
	return &listener{Listener: l, connections: c}
}

type listener struct {
	net.Listener
	connections *connections
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in, ok := l.connections.enter(c); ok {
			return in, nil
		}
		_ = c.Close() // without a response the client retries
	}
}

func (c *connections) enter(conn net.Conn) (net.Conn, bool) {
	a, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() {
		return conn, true
	}
	from := a.AddrPort().Addr().Unmap()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most > 0 && c.open >= c.most || c.mostOfOne > 0 && c.byOne[from] >= c.mostOfOne {
		return nil, false
	}
	c.open++
	c.byOne[from]++
	return &countedConn{Conn: conn, leave: sync.OnceFunc(func() { c.leave(from) })}, true
}

func (c *connections) leave(from netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.byOne[from]--; c.byOne[from] == 0 {
		delete(c.byOne, from)
	}
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
