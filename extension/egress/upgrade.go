// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	upgradeproxy "k8s.io/apimachinery/pkg/util/proxy"
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
	u, end := newUpgrade()
	leave := context.AfterFunc(ctx, func() { u.fail(context.Cause(ctx)) })
	stop = func() {
		leave()
		end()
	}
	return context.WithValue(endsQuietly(ctx), upgradeKey{}, u), &upgradeWriter{w, u}, stop
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

// BoundTranslation bounds, as [BoundUpgrade] does, a handler that takes the client's connection over before it dials, as the translator
// of WebSocket streams does. Such a handler does not say when the backend has answered, so its connection looks for the answer itself.
// It does so above TLS: translator gets a location without TLS, and a transport whose connections have it already. A backend that refuses
// the upgrade stays under the bound, because the handler reads its answer to the end.
//
// The dial function of transport must come from [Bounded]. The client's leaving does not end the wait.
func BoundTranslation(
	location *url.URL, transport http.RoundTripper, translator func(*url.URL, http.RoundTripper) http.Handler,
) http.Handler {
	plain := *location
	plain.Scheme = "http"
	handler := translator(&plain, &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := upgradeproxy.DialURL(ctx, location, transport)
		u, _ := ctx.Value(upgradeKey{}).(*upgrade)
		if err != nil || u == nil {
			return c, err
		}
		return &answerConn{Conn: c, of: u}, nil
	}})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, end := newUpgrade()
		defer end()
		handler.ServeHTTP(w, r.WithContext(context.WithValue(endsQuietly(r.Context()), upgradeKey{}, u)))
	})
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

// newUpgrade begins the bound; end stops its clock.
func newUpgrade() (u *upgrade, end func()) {
	u = &upgrade{left: upgradeBytes}
	timer := time.AfterFunc(upgradeTime, func() { u.fail(fmt.Errorf("the backend has not answered the upgrade within %v", upgradeTime)) })
	return u, func() { timer.Stop() }
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

const headerEnd = "\r\n\r\n"

// answerConn is the connection to the backend above TLS, which looks for the end of the answer's header.
type answerConn struct {
	net.Conn
	of     *upgrade
	header []byte
	read   bool // the whole header was
}

// Read implements [net.Conn].
func (c *answerConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.read {
		return n, err
	}
	from := max(0, len(c.header)-len(headerEnd)+1)
	if c.header = append(c.header, p[:n]...); !bytes.Contains(c.header[from:], []byte(headerEnd)) {
		return n, err
	}
	if _, status, _ := bytes.Cut(c.header, []byte(" ")); bytes.HasPrefix(status, []byte("101 ")) {
		if failed := c.of.answer(); failed != nil {
			err = failed
		}
	}
	c.header, c.read = nil, true
	return n, err
}
