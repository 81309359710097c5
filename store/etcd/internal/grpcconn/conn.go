// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// window is how many bytes the server may send before they are read. They are read at once.
	window = 16 << 20
	// initialWindow, initialFrame and initialTable are HTTP/2's values until the server's settings say otherwise.
	initialWindow, initialFrame, initialTable = 65535, 16 << 10, 4096
	// lastStream is the stream after which a connection takes no more calls.
	lastStream = 1 << 30
	// writeTime is how long the server may take nothing of what is written.
	writeTime = 5 * time.Second
	// replyTime is how long an answer to a ping may wait for a request to leave with: etcd measures the bandwidth by many of them.
	replyTime = 50 * time.Millisecond
	// largestHeader bounds a block of headers, and each of its values.
	largestHeader = 1 << 20
)

// Options of a connection.
type Options struct {
	// Settled is called on the reading goroutine when all that has arrived is handled. It must not block.
	Settled func()
	// Silence is how long the server may send nothing during a call until it gets a ping, and the least time between two pings. Patience is
	// how long it may send nothing after that. etcd ends connections with pings more frequent than every five seconds, or without a call.
	Silence, Patience time.Duration
}

// Conn is a connection. It is safe for concurrent use.
type Conn struct {
	options Options
	raw     net.Conn       // TCP, below what out writes to
	owned   sync.WaitGroup // the reader, and who writes on its behalf
	frames  atomic.Int64   // that were read
	ready   chan struct{}  // is closed when the server's settings are there
	broken  chan struct{}  // is closed when the connection is broken

	mu        sync.Mutex
	out       output
	calls     map[uint32]*call
	short     int    // of them, those that end with their answer
	next      uint32 // stream
	most      uint32 // calls at once
	err       error  // why the connection is broken
	going     bool   // no new calls: the server is going away, or the connection is retired
	room      chan struct{}
	keepalive *time.Timer
	asking    bool        // a ping has no answer
	asked     time.Time   // when the last ping was sent
	later     *time.Timer // sends what answers the server's pings; nil: nothing waits for it
}

// Dial connects to a server, with TLS if there is a configuration of it, and waits for the server's settings.
func Dial(ctx context.Context, address string, config *tls.Config, options Options) (*Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	c := &Conn{
		options: options, raw: raw, calls: map[uint32]*call{}, next: 1, most: 1 << 31,
		ready: make(chan struct{}), broken: make(chan struct{}),
	}
	c.out.init(raw, "http", address)
	if config != nil {
		secured, err := secure(ctx, raw, address, config)
		if err != nil {
			return nil, errors.Join(status.Error(codes.Unavailable, err.Error()), raw.Close())
		}
		c.out.init(secured, "https", address)
	}
	first := []byte(http2.ClientPreface)
	first = appendSettings(first,
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}, http2.Setting{ID: http2.SettingEnablePush},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: largestHeader})
	first = appendWindowUpdate(first, 0, window-initialWindow)
	if err := c.out.write(first); err != nil {
		return nil, errors.Join(status.Error(codes.Unavailable, err.Error()), raw.Close())
	}
	c.mu.Lock()
	c.keepalive = time.AfterFunc(options.Silence, func() { c.alive(0, false) })
	c.mu.Unlock()
	c.owned.Go(newReader(c).run)
	select {
	case <-c.ready:
		return c, nil
	case <-c.broken:
	case <-ctx.Done():
		c.Fail(ctx.Err())
	}
	c.owned.Wait()
	return nil, c.err
}

func secure(ctx context.Context, raw net.Conn, address string, config *tls.Config) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	config = config.Clone()
	config.NextProtos = []string{http2.NextProtoTLS}
	if config.ServerName == "" {
		config.ServerName = host
	}
	t := tls.Client(raw, config)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if t.ConnectionState().NegotiatedProtocol != http2.NextProtoTLS {
		return nil, errors.New("the server speaks no HTTP/2")
	}
	return t, nil
}

// alive sends a ping if the server has sent nothing since it had sent so many frames, and ends the connection if it had been asked then.
func (c *Conn) alive(before int64, asked bool) {
	frames := c.frames.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := frames == before
	switch {
	case c.err != nil:
		return
	case silent && asked:
		c.end(errors.New("the server sends nothing"))
		return
	}
	wait := c.options.Silence
	if asked = silent && c.ask(); asked {
		wait = c.options.Patience
	}
	c.keepalive = time.AfterFunc(wait, func() { c.alive(frames, asked) })
	c.flush(0)
}

// ask appends a ping, and reports whether one has no answer. The caller holds mu.
func (c *Conn) ask() bool {
	now := time.Now()
	if c.asking || len(c.calls) == 0 || now.Sub(c.asked) < c.options.Silence {
		return c.asking
	}
	c.asking, c.asked = true, now
	c.out.buf = appendFrame(c.out.buf, http2.FramePing, 0, 0, make([]byte, 8))
	return true
}

// Frames returns how many frames the server has sent: a server that sends one lives.
func (c *Conn) Frames() int64 { return c.frames.Load() }

// Ping asks the server for a frame. It reports whether the server owes one: pings must not be frequent.
func (c *Conn) Ping() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	owes := c.err == nil && c.ask()
	c.flush(0)
	return owes
}

// Usable reports whether the connection takes new calls.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.going
}

// Retire ends the connection when its calls have ended.
func (c *Conn) Retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.going = true
	c.roomy()
	c.endIdle()
}

// endIdle ends a connection that takes no new calls and has none. The caller holds mu.
func (c *Conn) endIdle() {
	if c.going && len(c.calls) == 0 {
		c.end(errors.New("the connection is retired"))
	}
}

// Ended reports whether the connection is broken or closed.
func (c *Conn) Ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// Fail ends the connection and its calls.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(err)
}

// Close ends the connection and its calls, and waits for its goroutines. A Receiver must not call it.
func (c *Conn) Close() {
	c.Fail(errors.New("the connection is closed"))
	c.owned.Wait()
}

// end ends the connection and its calls. The first error counts. The caller holds mu.
func (c *Conn) end(err error) {
	if c.err != nil {
		return
	}
	c.err = status.Error(codes.Unavailable, fmt.Sprintf("connection to %s: %v", c.out.authority, err))
	c.keepalive.Stop()
	if c.later != nil {
		c.later.Stop()
	}
	_ = c.raw.Close() // TLS would wait until the server takes its farewell
	for _, one := range c.calls {
		one.finish(c.err)
	}
	c.calls, c.short = nil, 0
	close(c.broken)
	c.roomy()
}

// roomy wakes the callers that wait for room. The caller holds mu.
func (c *Conn) roomy() {
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}
