// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// pipes is a listener for in-process connections.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// client is an HTTP/2 connection at the frame level.
type client struct {
	*http2.Framer
	conn net.Conn
	took chan struct{} // closed when reading has ended, together with the connection
}

// attack calls f with a connection until it fails, and returns how long the connection was open. It reads the server's
// data up to the first acknowledgement, and after that only if listening is set.
func attack(t *testing.T, listening bool, f func(c *client) error) (open time.Duration) {
	t.Helper()
	material, err := LoadOrCreate("", []string{"localhost"}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		srv := HTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), 1<<20, 10)
		srv.ErrorLog = log.New(io.Discard, "", 0)
		pair := material.Server.TLS()
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
			Time: func() time.Time { return pair.Leaf.NotBefore.Add(time.Hour) }}
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := srv.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		}()
		ours, theirs := net.Pipe()
		l.conns <- theirs
		began := time.Now()
		conn := tls.Client(ours, &tls.Config{RootCAs: material.CA.Pool(), ServerName: "localhost", NextProtos: []string{"h2"},
			Time: srv.TLSConfig.Time})
		c := &client{Framer: http2.NewFramer(conn, conn), conn: conn, took: make(chan struct{})}
		acknowledged := make(chan struct{})
		go func() {
			defer close(c.took)
			for {
				f, err := c.ReadFrame()
				if err != nil {
					return
				}
				if s, ok := f.(*http2.SettingsFrame); ok && s.IsAck() {
					select {
					case <-acknowledged:
					default:
						close(acknowledged)
					}
					if !listening {
						return
					}
				}
			}
		}()
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := c.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		<-acknowledged
		for err == nil && time.Since(began) < time.Hour {
			err = f(c)
		}
		open = time.Since(began)
		_ = ours.Close()
		<-c.took
		_ = srv.Close()
		<-done
	})
	return open
}

// head opens a request with the beginning of its head.
func (c *client) head(stream uint32, whole bool) error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":path", "/"}, {":authority", "localhost"}} {
		if err := e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return err
		}
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: whole})
}

// TestConnectionsWithoutRequests checks that neither frames without a request nor an endless head keep an HTTP/2
// connection open.
func TestConnectionsWithoutRequests(t *testing.T) {
	begun := false
	for name, f := range map[string]func(c *client) error{
		"nothing": func(*client) error { return nil },
		"pings":   func(c *client) error { return c.WritePing(false, [8]byte{}) },
		"settings": func(c *client) error {
			return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
		},
		"priorities": func(c *client) error { return c.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"a head that does not end": func(c *client) error {
			if !begun {
				begun = true
				return c.head(1, false)
			}
			return c.WriteContinuation(1, false, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			open := attack(t, true, func(c *client) error {
				select {
				case <-c.took:
					return io.EOF
				case <-time.After(time.Second):
					return f(c)
				}
			})
			if open < idleTime || open > idleTime+5*time.Second {
				t.Errorf("it was open for %v", open)
			}
		})
	}
}

// TestDeafClients checks that the connection of a client that reads nothing is closed, whether the server has data for
// it or not, and immediately when there is too much data.
func TestDeafClients(t *testing.T) {
	stream := uint32(1)
	for name, c := range map[string]struct {
		f     func(c *client) error
		every time.Duration
		most  time.Duration
	}{
		"settings": {func(c *client) error { return c.WriteSettings() }, time.Second, takeTime + 10*time.Second},
		"settings with requests": {func(c *client) error { stream += 2; return errors.Join(c.WriteSettings(), c.head(stream, true)) },
			time.Second, takeTime + 10*time.Second},
		"pings":               {func(c *client) error { return c.WritePing(false, [8]byte{}) }, time.Second, takeTime + 10*time.Second},
		"pings without pause": {func(c *client) error { return c.WritePing(false, [8]byte{}) }, 0, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			n := 0
			open := attack(t, false, func(k *client) error {
				if c.every > 0 {
					<-time.NewTimer(c.every).C
				}
				n++
				return c.f(k)
			})
			if open > c.most || n > 20_000 {
				t.Errorf("it was open for %v and %d frames", open, n)
			}
		})
	}
}
