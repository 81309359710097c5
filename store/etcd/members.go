// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/internal/grpcconn"
)

const (
	// connectTime is how long members have to greet. It does not depend on the callers' patience: the next ones find the connection.
	connectTime = 5 * time.Second
	// nextMember is after how long the next member is tried, too.
	nextMember = 300 * time.Millisecond
)

// errUnsent is of a call that no member has got.
var errUnsent = errors.New("no connection to etcd")

// members hands out the connection that transactions, questions and the watch share, to one member of etcd. If that breaks, or its member
// does not do its part, the next member gets one.
type members struct {
	servers []string
	tls     *tls.Config
	options grpcconn.Options

	current atomic.Pointer[grpcconn.Conn]
	owned   sync.WaitGroup

	mu      sync.Mutex
	next    int // server
	dialing *dialing
	all     []*grpcconn.Conn
	closed  bool
}

// dialing is a connection that is made. What it has is set when done is closed.
type dialing struct {
	cancel context.CancelFunc
	done   chan struct{}
	conn   *grpcconn.Conn
	err    error
}

func newMembers(o Options, settled func()) *members {
	return &members{
		servers: o.Servers, tls: o.TLS, next: rand.IntN(len(o.Servers)),
		options: grpcconn.Options{Settled: settled, Silence: keepaliveTime, Patience: keepaliveTimeout},
	}
}

// get returns the connection, and makes one if there is none.
func (m *members) get(ctx context.Context) (*grpcconn.Conn, error) {
	if c := m.current.Load(); c != nil && c.Usable() {
		return c, nil
	}
	d := m.dial()
	select {
	case <-d.done:
		return d.conn, d.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errUnsent, ctx.Err())
	}
}

// dial returns the connection that is made now, or the one that is there meanwhile.
func (m *members) dial() *dialing {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dialing != nil {
		return m.dialing
	}
	d := &dialing{done: make(chan struct{})}
	switch c := m.current.Load(); {
	case m.closed:
		d.err = store.ErrClosed
		close(d.done)
	case c != nil && c.Usable():
		d.conn = c
		close(d.done)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), connectTime)
		d.cancel, m.dialing = cancel, d
		m.owned.Go(func() { m.connect(ctx, d) })
	}
	return d
}

// connect connects to the member that greets first. Each has its turn when the last one has failed, or takes long.
func (m *members) connect(ctx context.Context, d *dialing) {
	results := make(chan dialing, len(m.servers))
	turn := time.NewTimer(0)
	defer turn.Stop()
	pending := 0
	for left := len(m.servers); d.conn == nil && left+pending > 0; {
		select {
		case <-turn.C:
			if left > 0 {
				left--
				pending++
				m.owned.Go(func() {
					c, err := m.dialNext(ctx)
					results <- dialing{conn: c, err: err}
				})
				turn.Reset(nextMember)
			}
		case r := <-results:
			pending--
			d.conn, d.err = r.conn, errors.Join(d.err, r.err)
			turn.Reset(0)
		}
	}
	if d.conn != nil {
		d.err = nil
	} else {
		d.err = fmt.Errorf("%w: %w", errUnsent, d.err)
	}
	m.dialed(d)
	d.cancel()
	for range pending {
		if r := <-results; r.conn != nil {
			r.conn.Close()
		}
	}
}

// dialed makes a connection the one that is handed out.
func (m *members) dialed(d *dialing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d.conn != nil {
		m.all = append(slices.DeleteFunc(m.all, (*grpcconn.Conn).Ended), d.conn)
		m.current.Store(d.conn)
	}
	m.dialing = nil
	close(d.done)
}

// dialNext connects to the next member.
func (m *members) dialNext(ctx context.Context) (*grpcconn.Conn, error) {
	m.mu.Lock()
	server := m.servers[m.next%len(m.servers)]
	m.next++
	m.mu.Unlock()
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("etcd server %q: %w", server, err)
	}
	config := m.tls
	if u.Scheme != "https" {
		config = nil
	} else if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), u.Scheme)
	}
	return grpcconn.Dial(ctx, address, config, m.options)
}

// leave makes the next calls go to another member, if err may be this one's fault.
func (m *members) leave(c *grpcconn.Conn, err error) {
	if known := code(err); known != codes.Unavailable && known != codes.DeadlineExceeded && !errors.Is(err, errStalled) {
		return
	}
	if m.current.CompareAndSwap(c, nil) {
		c.Retire()
	}
}

// doubt returns a function for a call that takes long. The second time it asks the member for a sign of life. If there has been none the
// fourth time, it ends the connection.
func (m *members) doubt(c *grpcconn.Conn) func() {
	var frames int64
	var owes bool
	times := 0
	return func() {
		switch times++; {
		case times == 2:
			frames = c.Frames()
			owes = c.Ping()
		case times == 4 && owes && c.Frames() == frames:
			m.current.CompareAndSwap(c, nil)
			c.Fail(errors.New("the member is silent"))
		}
	}
}

// close ends all connections, and the dials.
func (m *members) close() {
	m.mu.Lock()
	m.closed = true
	if m.dialing != nil {
		m.dialing.cancel()
	}
	m.mu.Unlock()
	m.owned.Wait()
	for _, c := range m.all {
		c.Close()
	}
}
