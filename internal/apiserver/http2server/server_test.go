// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// start serves a handler over TLS, and returns its server and a client that speaks HTTP/2.
func start(t testing.TB, o Options, h http.HandlerFunc) (*httptest.Server, *http.Client) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	return s, startWith(t, s, o)
}

// startWith starts a server, and returns a client that speaks HTTP/2.
func startWith(t testing.TB, s *httptest.Server, o Options) *http.Client {
	t.Helper()
	startTLS(s, o)
	transport := &http2.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		s.CloseClientConnections()
		s.Close()
	})
	return &http.Client{Transport: transport}
}

// startTLS starts a server with HTTP/2 alone.
func startTLS(s *httptest.Server, o Options) *Server {
	s.EnableHTTP2 = false
	s.TLS = &tls.Config{NextProtos: []string{"h2"}}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	h2 := new(Server)
	h2.Configure(s.Config, o)
	s.StartTLS()
	return h2
}

func read(t testing.TB, r *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAnswers(t *testing.T) {
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/empty":
		case "/small":
			fmt.Fprintf(w, "%s %s %s %s %v", r.Method, r.Proto, r.Host, r.URL.RawQuery, r.TLS != nil)
		case "/large":
			for i := range 100 {
				fmt.Fprint(w, strings.Repeat(string(rune('a'+i%26)), 30_000))
			}
		case "/echo":
			w.Header().Set("Content-Type", "x/y")
			_, _ = io.Copy(w, r.Body)
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/known":
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		case "/exceeded":
			w.Header().Set("Content-Length", "5")
			if _, err := fmt.Fprint(w, "hello, world"); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("error %v", err)
			}
			fmt.Fprint(w, "")
			panic(http.ErrAbortHandler)
		case "/trailers":
			w.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(w, "body")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-More", "2")
		case "/panic":
			panic("oh")
		case "/fields":
			w.Header()["X-Many"] = []string{"a", "b"}
			w.Header().Set("Connection", "keep-alive")
			w.Header().Set("Audit-Id", strings.Repeat("i", 300))
			w.WriteHeader(http.StatusTeapot)
			fmt.Fprint(w, r.Header["X-Ask"], r.Header["Cookie"])
		}
	})
	get := func(path string) (*http.Response, string) {
		r, err := client.Get(s.URL + path)
		return r, read(t, r, err)
	}
	if r, text := get("/empty"); text != "" || r.StatusCode != http.StatusOK || r.ContentLength != 0 || r.Header.Get("Date") == "" {
		t.Errorf("empty: %q %v", text, r)
	}
	if r, text := get("/small?q=1"); text != "GET HTTP/2.0 "+strings.TrimPrefix(s.URL, "https://")+" q=1 true" ||
		r.ContentLength != int64(len(text)) || r.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("small: %q %v", text, r)
	}
	if _, text := get("/large"); len(text) != 3_000_000 || text[29_999:30_001] != "ab" {
		t.Errorf("large: %d bytes", len(text))
	}
	if r, text := get("/none"); text != "" || r.StatusCode != http.StatusNoContent {
		t.Errorf("none: %q %v", text, r)
	}
	if r, text := get("/known"); text != "hello" || r.ContentLength != 5 {
		t.Errorf("known: %q %v", text, r)
	}
	if r, text := get("/trailers"); text != "body" || r.Trailer.Get("X-Sum") != "1" || r.Trailer.Get("X-More") != "2" {
		t.Errorf("trailers: %q %v", text, r.Trailer)
	}
	for _, path := range []string{"/panic", "/exceeded"} {
		if r, err := client.Get(s.URL + path); err == nil {
			_, err = io.ReadAll(r.Body)
			_ = r.Body.Close()
			if err == nil {
				t.Errorf("%s: no error", path)
			}
		}
	}
	ask, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/fields", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	ask.Header["X-Ask"] = []string{"1", "2"}
	ask.Header["Cookie"] = []string{"a=1; b=2"}
	r, err := client.Do(ask)
	if text := read(t, r, err); text != "[1 2] [a=1; b=2]" || r.StatusCode != http.StatusTeapot ||
		!slices.Equal(r.Header["X-Many"], []string{"a", "b"}) || r.Header.Get("Connection") != "" || len(r.Header.Get("Audit-Id")) != 300 {
		t.Errorf("fields: %q %v", text, r)
	}
	if r, err := client.Head(s.URL + "/large"); err != nil || r.ContentLength != 3_000_000 {
		t.Errorf("head: %v %v", r, err)
	}
	for _, n := range []int{0, 1, 5_000, 3_000_000} {
		in := strings.Repeat("x", n)
		for name, body := range map[string]io.Reader{"announced": strings.NewReader(in), "not announced": io.MultiReader(strings.NewReader(in))} {
			r, err := client.Post(s.URL+"/echo", "x/y", body)
			if text := read(t, r, err); text != in {
				t.Errorf("echo of %d bytes, %s: %d came", n, name, len(text))
			}
		}
	}
}

// Requests of many goroutines over one connection do not mix.
func TestManyStreams(t *testing.T) {
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.URL.Path)
		_, _ = w.Write(b)
	})
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			for j := range 50 {
				path, body := fmt.Sprintf("/%d/%d", i, j), strings.Repeat(fmt.Sprint(i), j*i*10)
				r, err := client.Post(s.URL+path, "x/y", strings.NewReader(body))
				if text := read(t, r, err); text != path+body {
					t.Errorf("%s: %.60q", path, text)
				}
			}
		})
	}
	all.Wait()
}

// A handler learns that its client has gone, and an event of a stream arrives when it is flushed.
func TestFlushAndCancel(t *testing.T) {
	gone, more := make(chan struct{}), make(chan string)
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		defer close(gone)
		for {
			select {
			case text := <-more:
				fmt.Fprint(w, text)
				_ = http.NewResponseController(w).Flush() // the client may have gone
			case <-r.Context().Done():
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	go func() { more <- "one" }()
	r, err := client.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	buf := make([]byte, 3)
	for _, want := range []string{"one", "two"} {
		if want == "two" {
			more <- want
		}
		if _, err := io.ReadFull(r.Body, buf); err != nil || string(buf) != want {
			t.Fatalf("%q %v", buf, err)
		}
	}
	cancel()
	<-gone
}

// Deadlines end a read of a body that does not come, and a write that the client does not take.
func TestDeadlines(t *testing.T) {
	got := make(chan error, 2)
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		conn := http.NewResponseController(w)
		if r.Method == http.MethodPost {
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := io.ReadAll(r.Body)
			got <- err
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = conn.Flush()
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		b := make([]byte, 1<<20)
		for {
			if _, err := w.Write(b); err != nil {
				got <- err
				return
			}
		}
	})
	body, _ := io.Pipe()
	r, err := client.Post(s.URL, "x/y", body)
	if err == nil {
		_ = r.Body.Close()
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read: %v", err)
	}
	if r, err = client.Get(s.URL); err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
}

// A server that shuts down finishes its requests; a client with a closed connection asks on another one.
func TestShutdown(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-finish
		}
		fmt.Fprint(w, "done")
	})
	result := make(chan string, 1)
	go func() {
		r, err := client.Get(s.URL + "/slow")
		if err != nil {
			result <- err.Error()
			return
		}
		b, err := io.ReadAll(r.Body)
		result <- fmt.Sprint(string(b), err)
	}()
	<-begun
	down := make(chan error, 1)
	go func() { down <- s.Config.Shutdown(context.Background()) }()
	select {
	case err := <-down:
		t.Fatalf("it is down before the request has ended: %v", err)
	case <-time.After(20 * time.Millisecond): // it waits for the request
	}
	close(finish)
	if got := <-result; got != "done<nil>" {
		t.Errorf("the request under way: %s", got)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

func TestConnectionClose(t *testing.T) {
	var conns sync.Map
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		conns.Store(r.RemoteAddr, true)
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "ok")
	})
	for range 5 {
		r, err := client.Get(s.URL)
		if text := read(t, r, err); text != "ok" {
			t.Fatal(text)
		}
	}
	n := 0
	conns.Range(func(any, any) bool { n++; return true })
	if n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}

// A connection without a request ends after the idle time.
func TestIdle(t *testing.T) {
	s, _ := start(t, Options{Idle: 20 * time.Millisecond}, func(http.ResponseWriter, *http.Request) {})
	conn := dial(t, s)
	f := http2.NewFramer(conn, conn)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = f.WriteSettings()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("no GOAWAY: %v", err)
		}
		if away, ok := frame.(*http2.GoAwayFrame); ok {
			if away.ErrCode != http2.ErrCodeNo {
				t.Errorf("code %v", away.ErrCode)
			}
			return
		}
	}
}

func dial(t testing.TB, s *httptest.Server) net.Conn {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}).DialContext(t.Context(), "tcp",
		s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// FuzzConnection sends a connection what is no proper HTTP/2. The server neither panics nor hangs: it answers, or ends the connection.
func FuzzConnection(f *testing.F) {
	var one bytes.Buffer
	framer := http2.NewFramer(&one, nil)
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82, 0x87, 0x84, 0x41, 0x01, 'x'}, EndHeaders: true})
	_ = framer.WriteData(1, false, []byte("data"))
	_ = framer.WriteWindowUpdate(0, 1)
	_ = framer.WritePing(false, [8]byte{})
	_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
	f.Add(one.Bytes())
	f.Add([]byte{})
	s, _ := start(f, Options{Streams: 4}, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := dial(t, s)
		_, _ = io.WriteString(conn, http2.ClientPreface)
		_, _ = conn.Write(data)
		_ = conn.(*tls.Conn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	})
}
