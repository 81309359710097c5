// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
)

// waiting starts a server with n streams that wait for the window of their connection, which is used up, and returns the connection and
// its client.
func waiting(t testing.TB, n int) (*conn, *raw) {
	t.Helper()
	_, h2, r := startRaw(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) },
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: 8 << 20})
	for i := range n {
		if err := r.ask(uint32(2*i+1), "/", true); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	r.until("the window's end", func(f http2.Frame) bool {
		if d, ok := f.(*http2.DataFrame); ok {
			got += len(d.Data())
		}
		return got == initialWindow
	})
	c := h2.only()
	for c.waiting() < n {
		// A ping is answered after the frames before it, by when some more handlers may have come to wait.
		if err := r.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
		r.until("the ping", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	}
	return c, r
}

// startRaw serves a handler, and returns its server and a client at the level of frames.
func startRaw(t testing.TB, h http.HandlerFunc, settings ...http2.Setting) (*httptest.Server, *Server, *raw) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	h2 := startTLS(s, Options{})
	t.Cleanup(s.Close)
	return s, h2, dialRaw(t, s, settings...)
}

// only returns the server's connection.
func (s *Server) only() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		return c
	}
	return nil
}

// waiting returns how many streams wait for the connection's room.
func (c *conn) waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.blocked.streams.Len()
}

// Each raise of the connection's window wakes one of the streams that wait for it, and the others when that one goes.
func TestRaiseWakesOne(t *testing.T) {
	var o output
	var all []*stream
	for range 100 {
		st := &stream{woken: make(chan struct{}, 1)}
		o.blocked.join(st)
		all = append(all, st)
	}
	woken := func() (n int) {
		for _, st := range all {
			n += len(st.woken)
		}
		return n
	}
	if o.wake(); woken() != 0 {
		t.Errorf("%d streams were woken without room", woken())
	}
	o.window = 1
	if o.wake(); woken() != 1 || len(all[0].woken) != 1 {
		t.Errorf("%d streams were woken by one byte, want the first", woken())
	}
	if o.pass(all[0]); woken() != 2 || len(all[1].woken) != 1 {
		t.Errorf("%d streams were woken when the first had gone and left room, want the first and the second", woken())
	}
	o.window = 0
	if o.pass(all[1]); woken() != 2 {
		t.Errorf("%d streams were woken when the second had taken the room, want two", woken())
	}
}

// Streams that wait for the connection's window share it, however small its raises are.
func TestRaisesAreShared(t *testing.T) {
	const streams, raises = 8, 400
	_, r := waiting(t, streams)
	got := map[uint32]int{}
	for range raises {
		if err := r.WriteWindowUpdate(0, 1); err != nil {
			t.Fatal(err)
		}
		r.until("a byte", func(f http2.Frame) bool {
			if f.Header().Type == http2.FrameData {
				got[f.Header().StreamID]++
			}
			return f.Header().Type == http2.FrameData
		})
	}
	for id := uint32(1); id < 2*streams; id += 2 {
		if n := got[id]; n < raises/streams/2 {
			t.Errorf("stream %d got %d bytes of %d, want about %d", id, n, raises, raises/streams)
		}
	}
}

// A stream that ends while it waits does not keep the room from the others.
func TestWaitingStreamEnds(t *testing.T) {
	const streams = 8
	c, r := waiting(t, streams)
	for id := uint32(1); id < 2*streams-1; id += 2 {
		if err := r.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.WriteWindowUpdate(0, 1<<10); err != nil {
		t.Fatal(err)
	}
	got := 0
	r.until("all that there is room for", func(f http2.Frame) bool {
		if f.Header().Type == http2.FrameData && f.Header().StreamID == 2*streams-1 {
			got += int(f.Header().Length)
		}
		return got == 1<<10
	})
	for c.waiting() > 1 {
		if err := r.WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
		r.until("the ping", func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	}
}

// BenchmarkWindowByByte is what the server does for a client that gives 240 streams room byte by byte.
func BenchmarkWindowByByte(b *testing.B) {
	_, r := waiting(b, 240)
	b.ResetTimer()
	for range b.N {
		if err := r.WriteWindowUpdate(0, 1); err != nil {
			b.Fatal(err)
		}
		r.until("a byte", func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
	}
}

// TestLine lets streams come and leave. Those that are left keep the order in which they came.
func TestLine(t *testing.T) {
	var l line
	a, b, c, d := &stream{id: 1}, &stream{id: 3}, &stream{id: 5}, &stream{id: 7}
	order := func() (ids []uint32) {
		for e := l.streams.Front(); e != nil; e = e.Next() {
			ids = append(ids, e.Value.(*stream).id)
		}
		var back []uint32
		for e := l.streams.Back(); e != nil; e = e.Prev() {
			back = append([]uint32{e.Value.(*stream).id}, back...)
		}
		if !slices.Equal(ids, back) {
			t.Errorf("from the front %v, from the back %v", ids, back)
		}
		return ids
	}
	for _, st := range []*stream{a, b, c, d, b} {
		l.join(st)
	}
	for _, step := range []struct {
		leaves *stream
		had    bool
		want   []uint32
	}{{b, true, []uint32{1, 5, 7}}, {b, false, []uint32{1, 5, 7}}, {d, true, []uint32{1, 5}}, {a, true, []uint32{5}}, {c, true, nil}} {
		if had := l.leave(step.leaves); had != step.had {
			t.Errorf("stream %d had a place: %v", step.leaves.id, had)
		}
		if got := order(); !slices.Equal(got, step.want) {
			t.Errorf("order %v, want %v", got, step.want)
		}
	}
	l.poke() // nobody
	l.join(a)
	if got := order(); !slices.Equal(got, []uint32{1}) {
		t.Errorf("order %v", got)
	}
}

// The buffer of a body has a bound, even if its reader never has read all that is there.
func TestBodyBuffer(t *testing.T) {
	const window, piece = 64 << 10, 1 << 10
	b := body{declared: -1}
	b.append(make([]byte, window-piece))
	for range 10_000 {
		b.append(make([]byte, piece))
		b.at += piece
	}
	if n := cap(b.buf); n > 4*window {
		t.Errorf("the buffer has %d bytes for %d that wait", n, len(b.buf)-b.at)
	}
	if n := len(b.buf) - b.at; n != window-piece {
		t.Errorf("%d bytes wait, want %d", n, window-piece)
	}
}

// A connection that cannot be written to any more begins no requests, which nothing would end.
func TestFailedConnectionBeginsNothing(t *testing.T) {
	var begun atomic.Bool
	s, h2, r := startRaw(t, func(_ http.ResponseWriter, r *http.Request) { begun.Store(r.URL.Path == "/late") })
	if err := r.ask(1, "/", true); err != nil {
		t.Fatal(err)
	}
	r.until("the answer", answered(1))
	c := h2.only()
	c.mu.Lock()
	c.fail(errors.New("the network is gone"))
	c.mu.Unlock()
	if err := r.ask(3, "/late", true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := r.ReadFrame(); err != nil {
			break
		}
	}
	s.Close()
	if begun.Load() {
		t.Error("it began a request")
	}
}

// TestBodiesDoNotMix checks that requests whose bodies take each other's buffers read their own: some read all, some a part, some nothing.
func TestBodiesDoNotMix(t *testing.T) {
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/none":
		case "/part":
			b := make([]byte, 7)
			n, _ := io.ReadFull(r.Body, b)
			_, _ = w.Write(b[:n])
		default:
			_, _ = io.CopyBuffer(struct{ io.Writer }{w}, r.Body, make([]byte, 100))
		}
	})
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			for j := range 50 {
				body := strings.Repeat(string(rune('a'+i)), 1+(i*7919+j*104729)%(2*largestKept))
				for path, want := range map[string]string{"/all": body, "/part": body[:min(7, len(body))], "/none": ""} {
					r, err := client.Post(s.URL+path, "text/plain", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(r.Body)
					if err = errors.Join(err, r.Body.Close()); err != nil || string(got) != want {
						t.Errorf("%s with %d bytes: got %d, %v", path, len(body), len(got), err)
					}
				}
			}
		})
	}
	group.Wait()
}
