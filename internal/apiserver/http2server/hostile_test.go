// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// raw is a client at the level of frames.
type raw struct {
	*http2.Framer
	conn net.Conn
	t    testing.TB
}

func dialRaw(t testing.TB, s *httptest.Server, settings ...http2.Setting) *raw {
	t.Helper()
	conn := dial(t, s)
	r := &raw{http2.NewFramer(conn, conn), conn, t}
	r.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return r
}

// ask sends the header of a request.
func (r *raw) ask(id uint32, path string, end bool) error {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":path", path}, {":authority", "x"}} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	return r.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
}

// until reads frames until one is wanted.
func (r *raw) until(what string, wanted func(http2.Frame) bool) {
	r.t.Helper()
	for {
		f, err := r.ReadFrame()
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
		if wanted(f) {
			return
		}
	}
}

func away(code http2.ErrCode) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		g, ok := f.(*http2.GoAwayFrame)
		return ok && g.ErrCode == code
	}
}

func answered(id uint32) func(http2.Frame) bool {
	return func(f http2.Frame) bool {
		h, ok := f.(*http2.MetaHeadersFrame)
		return ok && h.StreamID == id
	}
}

// Streams that are opened and reset at once begin a bounded number of handlers, and end the connection when too many wait.
func TestRapidReset(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	s, _ := start(t, Options{Streams: 10}, func(http.ResponseWriter, *http.Request) {
		most.Store(max(most.Load(), running.Add(1)))
		<-release
	})
	defer close(release)
	r := dialRaw(t, s)
	go func() {
		for id := uint32(1); id < 1_001; id += 2 {
			if r.ask(id, "/", true) != nil || r.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
				return
			}
		}
	}()
	r.until("the end of the connection", away(http2.ErrCodeEnhanceYourCalm))
	if n := most.Load(); n > 10 {
		t.Errorf("%d handlers at once, want 10 at most", n)
	}
}

// A client that sends pings and does not read the answers is disconnected.
func TestUnread(t *testing.T) {
	s, _ := start(t, Options{}, func(http.ResponseWriter, *http.Request) {})
	r := dialRaw(t, s)
	for range 5_000_000 {
		if r.WritePing(false, [8]byte{}) != nil {
			return
		}
	}
	t.Error("the connection has not ended")
}

// A frame that does not end holds nobody up: the requests that came before it are answered.
func TestFrameThatDoesNotEnd(t *testing.T) {
	s, _ := start(t, Options{}, func(http.ResponseWriter, *http.Request) {})
	r := dialRaw(t, s)
	if err := r.ask(1, "/", true); err != nil {
		t.Fatal(err)
	}
	if err := r.ask(3, "/", false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.conn.Write([]byte{0, 16, 0, byte(http2.FrameData), 0, 0, 0, 0, 3, 'x'}); err != nil {
		t.Fatal(err)
	}
	r.until("the answer", answered(1))
}

// A stream whose client gives it no window holds no other up.
func TestNoWindow(t *testing.T) {
	s, _ := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	r := dialRaw(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	if err := r.ask(1, "/large", true); err != nil {
		t.Fatal(err)
	}
	r.until("the beginning", func(f http2.Frame) bool { return f.Header().Type == http2.FrameData && f.Header().StreamID == 1 })
	if err := r.ask(3, "/", true); err != nil {
		t.Fatal(err)
	}
	r.until("the other answer", answered(3))
	if err := r.WriteWindowUpdate(1, 1<<20); err != nil {
		t.Fatal(err)
	}
	got := 1
	r.until("the rest within the window of the connection", func(f http2.Frame) bool {
		if d, ok := f.(*http2.DataFrame); ok {
			got += len(d.Data())
		}
		return got == 65535
	})
}

// A stream that waits for its window goes on when the client's settings raise the windows of all streams.
func TestWindowBySettings(t *testing.T) {
	s, _ := start(t, Options{}, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 10_000)) })
	r := dialRaw(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	if err := r.ask(1, "/", true); err != nil {
		t.Fatal(err)
	}
	got := 0
	take := func(most int) func(http2.Frame) bool {
		return func(f http2.Frame) bool {
			if d, ok := f.(*http2.DataFrame); ok {
				got += len(d.Data())
			}
			return got == most
		}
	}
	r.until("the beginning", take(1))
	if err := r.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10_000}); err != nil {
		t.Fatal(err)
	}
	r.until("the rest", take(10_000))
}
