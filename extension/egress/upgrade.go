// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits of a backend's answer to an upgrade. Once it has answered, the connection may rest for as long as its two ends want.
const (
	upgradeTime  = time.Minute // from the request to the whole header of the answer, dialing and TLS included
	upgradeBytes = 1 << 20     // that the backend may send until then
)

// BoundUpgrade bounds how long, and how much, a proxy reads of a backend before the backend has answered an upgrade. A proxy takes the
// client's connection over when it has the backend's answer; until then nothing else ends the wait for a backend that stalls, not
// even the client's leaving.
//
// Proxy with the context and the writer that it returns, by a transport whose dial function comes from [Bounded], and call stop afterwards.
// A backend that exceeds the bound, or whose client has left, has its connection closed; reading it then fails with an error that says why.
func BoundUpgrade(ctx context.Context, w http.ResponseWriter) (bounded context.Context, writer http.ResponseWriter, stop func()) {
	u := &upgrade{left: upgradeBytes}
	leave := context.AfterFunc(ctx, func() { u.fail(context.Cause(ctx)) })
	timer := time.AfterFunc(upgradeTime, func() { u.fail(fmt.Errorf("the backend has not answered the upgrade within %v", upgradeTime)) })
	stop = func() {
		leave()
		timer.Stop()
	}
	return context.WithValue(ctx, upgradeKey{}, u), &upgradeWriter{w, u}, stop
}

// Bounded returns a dial function whose connections obey the bound that [BoundUpgrade] has put into their context, if any. A nil dial is
// the ordinary one.
func Bounded(dial Dial) Dial {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		u, _ := ctx.Value(upgradeKey{}).(*upgrade)
		if err != nil || u == nil {
			return c, err
		}
		if err := u.watch(c); err != nil {
			_ = c.Close()
			return nil, err
		}
		return &upgradeConn{c, u}, nil
	}
}

type upgradeKey struct{}

// upgrade is the state of one request that upgrades its connection.
type upgrade struct {
	mu       sync.Mutex
	backend  net.Conn
	left     int   // bytes that the backend may still send before it has answered
	answered bool  // the bound is over
	err      error // why the backend's connection was closed
}

// watch puts the backend's connection under the bound. It fails if the bound has been exceeded.
func (u *upgrade) watch(c net.Conn) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.backend = c
	return u.err
}

// fail closes the backend's connection, unless the backend has answered.
func (u *upgrade) fail(why error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.answered || u.err != nil {
		return
	}
	u.err = why
	if u.backend != nil {
		_ = u.backend.Close()
	}
}

// read counts what was read, and returns the error of the read.
func (u *upgrade) read(n int, err error) error {
	u.mu.Lock()
	u.left -= n
	exceeded := !u.answered && u.left < 0
	u.mu.Unlock()
	if exceeded {
		u.fail(fmt.Errorf("the backend has sent more than %d bytes before it answered the upgrade", upgradeBytes))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err != nil {
		return u.err
	}
	return err
}

// answer ends the bound. It fails if the bound has been exceeded.
func (u *upgrade) answer() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answered = u.err == nil
	return u.err
}

// upgradeConn is the connection to the backend.
type upgradeConn struct {
	net.Conn
	of *upgrade
}

// Read implements [net.Conn].
func (c *upgradeConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return n, c.of.read(n, err)
}

// upgradeWriter is the writer of the client's answer.
type upgradeWriter struct {
	http.ResponseWriter
	of *upgrade
}

// Unwrap lets http.ResponseController reach the connection.
func (w *upgradeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements [http.Hijacker]. A proxy calls it when it has the backend's answer.
func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := w.of.answer(); err != nil {
		return nil, nil, err
	}
	return http.NewResponseController(w.ResponseWriter).Hijack()
}
