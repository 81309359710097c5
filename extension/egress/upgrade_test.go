// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/mortise-dev/mortise/extension/egress"
)

// responder keeps the error that the proxy answers with.
type responder struct{ err error }

func (r *responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	r.err = err
	w.WriteHeader(http.StatusBadGateway)
}

// hijackable is a recorder whose connection can be taken over.
type hijackable struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h *hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// exchange proxies an upgrade to a backend. It returns the client's end, the responder, and what is closed when the proxy is done.
func exchange(t *testing.T, ctx context.Context, backend func(net.Conn)) (net.Conn, *responder, <-chan struct{}) {
	t.Helper()
	ours, client := net.Pipe()
	t.Cleanup(func() { _ = client.Close() })
	transport := &http.Transport{DialContext: egress.Bounded(func(context.Context, string, string) (net.Conn, error) {
		c, server := net.Pipe()
		over := make(chan struct{})
		t.Cleanup(func() { <-over })
		go func() {
			defer close(over)
			backend(server)
		}()
		return c, nil
	})}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://backend/exec", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	said, done := &responder{}, make(chan struct{})
	go func() {
		defer close(done)
		bounded, w, stop := egress.BoundUpgrade(ctx, &hijackable{httptest.NewRecorder(), ours})
		defer stop()
		u := &url.URL{Scheme: "http", Host: "backend"}
		proxy.NewUpgradeAwareHandler(u, transport, false, true, said).ServeHTTP(w, r.WithContext(bounded))
	}()
	return client, said, done
}

// request reads the proxied request, so that the backend can answer.
func request(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) }

// A backend that does not answer an upgrade is given up after a minute, whether it says nothing or a byte now and then.
func TestStalledUpgradesEnd(t *testing.T) {
	for name, backend := range map[string]func(net.Conn){
		"silent": request,
		"trickling": func(c net.Conn) {
			request(c)
			for _, err := c.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nX: ")); err == nil; time.Sleep(10 * time.Second) {
				_, err = c.Write([]byte("a"))
			}
		},
		"deaf": func(net.Conn) {}, // it does not read the request either
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, said, done := exchange(t, t.Context(), backend)
				<-done
				if took := time.Since(began); took != time.Minute {
					t.Errorf("ended after %v", took)
				}
				if said.err == nil {
					t.Error("no error")
				}
			})
		})
	}
}

// The client's leaving ends the wait for the backend.
func TestUpgradeEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the client has left")
		_, said, done := exchange(t, ctx, request)
		synctest.Wait()
		began := time.Now()
		cancel(left)
		<-done
		if !errors.Is(said.err, left) || time.Since(began) != 0 {
			t.Errorf("ended with %v after %v", said.err, time.Since(began))
		}
	})
}

// A header without end is not kept in memory.
func TestUpgradeHeadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		_, said, done := exchange(t, t.Context(), func(c net.Conn) {
			request(c)
			_, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n")
			for line := "X: " + strings.Repeat("a", 4000) + "\r\n"; err == nil && sent < 64<<20; sent += len(line) {
				_, err = io.WriteString(c, line)
			}
		})
		<-done
		synctest.Wait()
		if said.err == nil || !strings.Contains(said.err.Error(), "more than 1048576 bytes") || sent > 2<<20 {
			t.Errorf("%v after %d bytes", said.err, sent)
		}
	})
}

// The answer may be as long as the bound, and not a byte longer.
func TestLongestUpgradeHeaders(t *testing.T) {
	for _, more := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			const start, end = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\nX: ", "\r\n\r\n"
			client, said, done := exchange(t, t.Context(), func(c net.Conn) {
				request(c)
				_, _ = io.WriteString(c, start+strings.Repeat("a", 1<<20-len(start)-len(end)+more)+end)
				_ = c.Close()
			})
			if more == 0 {
				if resp, err := http.ReadResponse(bufio.NewReader(client), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
					t.Errorf("answer: %v, %v", resp, err)
				}
			}
			_ = client.Close()
			<-done
			if (said.err != nil) != (more > 0) {
				t.Errorf("%d bytes more: %v", more, said.err)
			}
		})
	}
}

// A backend that has answered may be silent for as long as it wants, and send as much as it wants.
func TestUpgradedConnectionsAreNotBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const most = 3 << 20
		client, said, done := exchange(t, ctx, func(c net.Conn) {
			request(c)
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			time.Sleep(time.Hour)
			_, _ = c.Write(make([]byte, most))
			_ = c.Close()
		})
		r := bufio.NewReader(client)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("answer: %v, %v", resp, err)
		}
		cancel() // a server ends the context of a request whose connection was taken over only with its handler
		n, err := io.Copy(io.Discard, r)
		<-done
		if n != most || err != nil || said.err != nil {
			t.Errorf("%d bytes, %v, %v", n, err, said.err)
		}
	})
}

// Other connections of the same dial function are left alone.
func TestBoundedLeavesOthersAlone(t *testing.T) {
	ours, _ := net.Pipe()
	refused := errors.New("refused")
	for _, want := range []error{nil, refused} {
		c, err := egress.Bounded(func(context.Context, string, string) (net.Conn, error) { return ours, want })(t.Context(), "tcp", "x")
		if c != ours || !errors.Is(err, want) {
			t.Errorf("%v, %v", c, err)
		}
	}
}

// TestUpgradeThatIsOver: what comes after the client has left finds no connection, and is told why.
func TestUpgradeThatIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := errors.New("the client has left")
		ctx, leave := context.WithCancelCause(t.Context())
		w := httptest.NewRecorder()
		bounded, writer, stop := egress.BoundUpgrade(ctx, w)
		defer stop()
		if err := http.NewResponseController(writer).Flush(); err != nil || !w.Flushed {
			t.Errorf("flushed %t, %v", w.Flushed, err)
		}
		leave(left)
		synctest.Wait()
		here, there := net.Pipe()
		c, err := egress.Bounded(func(context.Context, string, string) (net.Conn, error) { return here, nil })(bounded, "tcp", "x")
		if c != nil || !errors.Is(err, left) {
			t.Errorf("a connection: %v, %v", c, err)
		}
		if _, err := there.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("the backend's connection is open: %v", err)
		}
		if c, _, err := writer.(http.Hijacker).Hijack(); c != nil || !errors.Is(err, left) {
			t.Errorf("the client's connection: %v, %v", c, err)
		}
	})
}
