// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
)

// TestPing checks that Ping returns when the clients of an address have answered or are gone, and that what they send before is counted.
func TestPing(t *testing.T) {
	arrived := make(chan struct{})
	_, h2, r := startRaw(t, func(http.ResponseWriter, *http.Request) { close(arrived) })
	r.until("the acknowledgement of the settings", func(f http2.Frame) bool {
		s, ok := f.(*http2.SettingsFrame)
		return ok && s.IsAck()
	})
	local := r.conn.RemoteAddr().String()
	before := h2.Received(local)
	ping := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- h2.Ping(ctx, local) }()
		return ended
	}
	var data [8]byte
	asked := func(f http2.Frame) bool {
		p, ok := f.(*http2.PingFrame)
		if ok && !p.IsAck() {
			data = p.Data
			return true
		}
		return false
	}

	first := ping(t.Context())
	r.until("a ping", asked)
	if err := errors.Join(r.ask(1, "/", true), r.WritePing(true, [8]byte{0xff}), r.WritePing(true, data)); err != nil {
		t.Fatal(err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if n := h2.Received(local) - before; n != 1 {
		t.Errorf("%d frames were received before the answer, want that of the request", n)
	}
	<-arrived

	impatient, cancel := context.WithCancelCause(t.Context())
	second := ping(impatient)
	r.until("another ping", asked)
	cancel(errors.New("out of patience"))
	if err := <-second; err == nil || !strings.Contains(err.Error(), "out of patience: client "+r.conn.LocalAddr().String()) {
		t.Errorf("a client that does not answer: %v", err)
	}
	if err := h2.Ping(t.Context(), "192.0.2.1:1"); err != nil {
		t.Errorf("an address without clients: %v", err)
	}

	third := ping(t.Context())
	r.until("the last ping", asked)
	_ = r.conn.Close()
	if err := <-third; err != nil {
		t.Errorf("a client that leaves: %v", err)
	}
}

// labelling is a listener whose connections are served by goroutines with a label.
type labelling struct {
	net.Listener
	label string
}

func (l *labelling) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("listener", l.label)))
	return c, err
}

// TestLabels checks that a handler runs with the labels of its connection's goroutine although others have run before it. What goes on
// after the handler does, too, although a goroutine without labels wakes it.
func TestLabels(t *testing.T) {
	t.Setenv("GODEBUG", "tracebacklabels=1")
	header := func() string {
		stack := make([]byte, 1<<10)
		first, _, _ := strings.Cut(string(stack[:runtime.Stack(stack, false)]), "\n")
		return first
	}
	wake := make(chan *lasting.Response, 1)
	go func() {
		for response := range wake {
			response.Wake()
		}
	}()
	defer close(wake)
	srv := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, header()+"\n")
		_ = http.NewResponseController(w).Flush()
		response, woken := lasting.Of(w), false
		response.GoOn(func() bool {
			if !woken {
				woken = true
				return false
			}
			_, _ = io.WriteString(w, header())
			return true
		})
		wake <- response
	})}
	new(Server).Configure(srv, Options{})
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	srv.TLSConfig = &tls.Config{Certificates: certified.TLS.Certificates, NextProtos: []string{"h2"}}
	var urls []string
	for _, label := range []string{"one", "two"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, "https://"+l.Addr().String())
		go func() { _ = srv.ServeTLS(&labelling{l, label}, "", "") }()
	}
	defer srv.Close()
	transport := &http2.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	defer transport.CloseIdleConnections()
	for range 3 {
		for i, label := range []string{"one", "two"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, urls[i], nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(r)
			text := read(t, answer, err)
			if n := strings.Count(text, `"listener": "`+label+`"`); n != 2 {
				t.Errorf("a handler of listener %s runs as %q", label, text)
			}
		}
	}
}
