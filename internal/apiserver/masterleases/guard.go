// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package masterleases

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// The times of a guard. A server whose process was killed is noticed at once, by the end of the connection; one whose machine or network is
// gone after at most pingEvery + pingWait + dialWait.
const (
	pingEvery = 250 * time.Millisecond
	pingWait  = 300 * time.Millisecond
	dialWait  = 400 * time.Millisecond
	// handshakeWait is how long a server that accepts connections may take to answer on one: a busy one is no dead one.
	handshakeWait = 10 * time.Second
)

// Guard keeps a connection to each other server until ctx ends. It removes the lease of a server that is dead: whose connection has ended
// or is silent, and whose address accepts no other one. So a server that was killed is an endpoint for less than a second, not until its
// lease expires. A server that was never reached at its address is left to its lease. One that lost its lease and lives, because only
// the network between two servers was cut, writes it again, see [Leases.Hold]. The configuration is of the connections; they carry HTTP/2,
// and no request.
func (l *Leases) Guard(ctx context.Context, own netip.Addr, config *tls.Config) {
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	guarded := map[netip.AddrPort]context.CancelFunc{}
	var guards sync.WaitGroup
	defer guards.Wait()
	l.follow(ctx, func(known servers) {
		for at, stop := range guarded {
			if port, ok := known[at.Addr()]; !ok || port != at.Port() {
				stop()
				delete(guarded, at)
			}
		}
		for at, port := range known {
			peer := netip.AddrPortFrom(at, port)
			if at == own || port == 0 || guarded[peer] != nil {
				continue
			}
			attending, stop := context.WithCancel(ctx)
			guarded[peer] = stop
			guards.Go(func() {
				defer stop()
				l.guard(attending, peer, config)
			})
		}
	})
}

// guard attends one server until ctx ends.
func (l *Leases) guard(ctx context.Context, peer netip.AddrPort, config *tls.Config) {
	for reached := false; ctx.Err() == nil; {
		err := l.attend(ctx, peer, config)
		if reached = reached || err == nil; reached {
			l.examine(ctx, peer)
		}
		if err != nil && ctx.Err() == nil {
			l.Log.DebugContext(ctx, "Cannot reach another server, retrying", "server", peer, "error", err)
			wait(ctx, retry)
		}
	}
}

// attend connects to a server and returns nil when the connection has ended or is silent. The error is why there was none.
func (l *Leases) attend(ctx context.Context, peer netip.AddrPort, config *tls.Config) error {
	starting, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	var d net.Dialer
	raw, err := d.DialContext(starting, "tcp", peer.String())
	if err != nil {
		return err
	}
	defer raw.Close()
	ended := &endings{Conn: raw, ended: make(chan struct{})}
	secured := tls.Client(ended, config)
	if err := secured.HandshakeContext(starting); err != nil {
		return fmt.Errorf("greet: %w", err)
	}
	if p := secured.ConnectionState().NegotiatedProtocol; p != http2.NextProtoTLS {
		return fmt.Errorf("server speaks %q, not HTTP/2", p)
	}
	connection, err := (&http2.Transport{}).NewClientConn(secured)
	if err != nil {
		return err
	}
	defer connection.Close()
	next := time.NewTimer(pingEvery)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ended.ended:
			return nil
		case <-next.C:
		}
		answering, cancel := context.WithTimeout(ctx, pingWait)
		err := connection.Ping(answering)
		cancel()
		if err != nil {
			return nil
		}
		next.Reset(pingEvery)
	}
}

// examine removes the lease of a server that accepts no connections.
func (l *Leases) examine(ctx context.Context, peer netip.AddrPort) {
	key := prefix + peer.Addr().String()
	lease, _, err := l.Store.Get(ctx, key) // before the question, so that a server that comes back meanwhile keeps its lease
	if err != nil || lease == nil {
		return
	}
	dialing, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	var d net.Dialer
	if c, err := d.DialContext(dialing, "tcp", peer.String()); err == nil {
		_ = c.Close()
		return
	}
	if ctx.Err() != nil {
		return
	}
	if _, err := l.Store.Delete(ctx, key, lease.Revision); err != nil {
		l.Log.DebugContext(ctx, "Could not remove the lease of a dead server; another one may have done so", "server", peer, "error", err)
		return
	}
	l.Log.WarnContext(ctx, "Another server is dead: it is no endpoint of the cluster any more", "server", peer)
}

// endings is a connection that tells when it can be read no more.
type endings struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

// Read implements [net.Conn].
func (e *endings) Read(b []byte) (int, error) {
	n, err := e.Conn.Read(b)
	if err != nil {
		e.once.Do(func() { close(e.ended) })
	}
	return n, err
}
