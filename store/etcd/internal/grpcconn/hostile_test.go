// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// peer is a server's side of a connection, which a test plays by hand.
type peer struct {
	*http2.Framer
	t    *testing.T
	conn net.Conn
}

// play starts a server for one connection, which f serves after the greeting, and returns its address.
func play(t *testing.T, f func(p *peer), settings ...http2.Setting) string {
	t.Helper()
	return listen(t, func(conn net.Conn) {
		p := &peer{http2.NewFramer(conn, conn), t, conn}
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		if p.WriteSettings(settings...) == nil {
			f(p)
		}
	})
}

// listen starts a server for one connection, and returns its address.
func listen(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		f(conn)
	})
	t.Cleanup(func() { l.Close(); served.Wait() })
	return l.Addr().String()
}

// next returns the next frame of a type. The connection's end ends the wait with nil.
func next[F http2.Frame](p *peer) (f F, ok bool) {
	for {
		any, err := p.ReadFrame()
		if err != nil {
			return f, false
		}
		if f, ok := any.(F); ok {
			return f, true
		}
	}
}

// headers sends a block of headers.
func (p *peer) headers(stream uint32, last bool, pairs ...string) {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: last})
}

// answer answers a call with an empty message.
func (p *peer) answer(stream uint32) {
	p.headers(stream, false, ":status", "200", "content-type", "application/grpc")
	_ = p.WriteData(stream, false, make([]byte, 5))
	p.headers(stream, true, "grpc-status", "0")
}

// drain reads until the connection ends.
func (p *peer) drain() { _, _ = io.Copy(io.Discard, p.conn) }

// TestAnswers checks that an invalid answer ends its call with an error that names the fault. The connection stays usable.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(p *peer, stream uint32)
		code   codes.Code
		text   string
	}{
		"trailers only": {func(p *peer, s uint32) {
			p.headers(s, true, ":status", "200", "content-type", "application/grpc", "grpc-status", "11", "grpc-message", "a%20b%zz")
		}, codes.OutOfRange, "a%20b%zz"},
		"no number":      {func(p *peer, s uint32) { p.headers(s, true, ":status", "200", "grpc-status", "x") }, codes.Unknown, ""},
		"early status":   {func(p *peer, s uint32) { p.headers(s, false, ":status", "200", "grpc-status", "5") }, codes.NotFound, ""},
		"another server": {func(p *peer, s uint32) { p.headers(s, true, ":status", "404") }, codes.Unimplemented, "404"},
		"a proxy":        {func(p *peer, s uint32) { p.headers(s, false, ":status", "503") }, codes.Unavailable, "503"},
		"a page": {func(p *peer, s uint32) {
			p.headers(s, false, ":status", "200", "content-type", "text/html")
		}, codes.Unknown, "text/html"},
		"no status": {func(p *peer, s uint32) {
			p.headers(s, true, ":status", "200", "content-type", "application/grpc")
		}, codes.Unavailable, "no status"},
		"data without an end": {func(p *peer, s uint32) {
			p.headers(s, false, ":status", "200", "content-type", "application/grpc")
			_ = p.WriteData(s, true, make([]byte, 5))
		}, codes.Unavailable, "no status"},
		"reset": {func(p *peer, s uint32) { _ = p.WriteRSTStream(s, http2.ErrCodeRefusedStream) }, codes.Unavailable, "REFUSED_STREAM"},
		"half a message": {func(p *peer, s uint32) {
			p.headers(s, false, ":status", "200", "content-type", "application/grpc")
			_ = p.WriteData(s, false, []byte{0, 0, 0, 0, 2, 'x'})
			p.headers(s, true, "grpc-status", "0")
		}, codes.Internal, "amid a message"},
		"compressed": {func(p *peer, s uint32) {
			p.headers(s, false, ":status", "200", "content-type", "application/grpc")
			_ = p.WriteData(s, false, []byte{1, 0, 0, 0, 0})
		}, codes.Internal, "compressed"},
		"informational first": {func(p *peer, s uint32) { p.headers(s, false, ":status", "103"); p.answer(s) }, codes.OK, ""},
		"padded": {func(p *peer, s uint32) {
			p.headers(s, false, ":status", "200", "content-type", "application/grpc+proto")
			_ = p.WriteDataPadded(s, false, make([]byte, 5), make([]byte, 200))
			p.headers(s, true, "grpc-status", "0")
		}, codes.OK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			address := play(t, func(p *peer) {
				for n := 0; ; n++ {
					f, ok := next[*http2.HeadersFrame](p)
					if !ok {
						return
					}
					if n == 0 {
						c.answer(p, f.StreamID)
						p.answer(99) // to nobody
						continue
					}
					p.answer(f.StreamID)
				}
			})
			conn := dial(t, address, Options{})
			_, err := ask(t.Context(), conn, "/a/b", nil)
			if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v", err)
			}
			if got, err := ask(t.Context(), conn, "/a/b", nil); err != nil || got == nil {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// TestHostile: a server that breaks the protocol loses the connection, and the call ends.
func TestHostile(t *testing.T) {
	for name, f := range map[string]func(p *peer){
		"headers without an end": func(p *peer) {
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			for p.WriteContinuation(1, false, bytes.Repeat([]byte{0x88}, 1<<13)) == nil {
			}
		},
		"an endless value": func(p *peer) {
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0, 1, 'x', 0x7f, 0xff, 0xff, 0xff, 0x7f}})
			for p.WriteContinuation(1, false, make([]byte, 1<<13)) == nil {
			}
		},
		"another frame amid headers": func(p *peer) {
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			_ = p.WritePing(false, [8]byte{})
		},
		"a broken table": func(p *peer) {
			_ = p.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, []byte{0xff, 0xff, 0x7f})
		},
		"a frame too large": func(p *peer) { _ = p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<15)) },
		"a push": func(p *peer) {
			_ = p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		},
		"no window":    func(p *peer) { _ = p.WriteRawFrame(http2.FrameWindowUpdate, 0, 0, make([]byte, 4)) },
		"bad settings": func(p *peer) { _ = p.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) },
		"text":         func(p *peer) { _, _ = io.WriteString(p.conn, "HTTP/1.1 400 Bad Request\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, play(t, func(p *peer) {
				if _, ok := next[*http2.HeadersFrame](p); ok {
					f(p)
					p.drain()
				}
			}), Options{})
			if _, err := ask(t.Context(), c, "/a/b", nil); status.Code(err) != codes.Unavailable || !c.Ended() {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestGreeting: Dial fails if the server does not greet, or speaks another protocol.
func TestGreeting(t *testing.T) {
	options := Options{Settled: func() {}, Silence: time.Hour, Patience: time.Hour}
	for name, greet := range map[string]func(c net.Conn){
		"text": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") },
		"no settings": func(c net.Conn) {
			_ = http2.NewFramer(c, nil).WritePing(false, [8]byte{})
		},
		"nothing": func(c net.Conn) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			address := listen(t, func(c net.Conn) { greet(c); _, _ = io.Copy(io.Discard, c) })
			if _, err := Dial(t.Context(), address, nil, options); status.Code(err) != codes.Unavailable {
				t.Errorf("%v", err)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	address := listen(t, func(c net.Conn) { cancel(); _, _ = io.Copy(io.Discard, c) })
	if _, err := Dial(ctx, address, nil, options); status.Code(err) != codes.Unavailable {
		t.Errorf("a server that takes the connection and says nothing: %v", err)
	}
}

// TestWindows: a request is sent as fast as the server gives room to its stream and to the connection, whatever the order; settings that
// take room back count.
func TestWindows(t *testing.T) {
	const size = 100_000
	address := play(t, func(p *peer) {
		h, ok := next[*http2.HeadersFrame](p)
		if !ok {
			return
		}
		stream, got := h.StreamID, 0
		take := func(want int) bool { // exactly so many bytes
			for want > 0 {
				f, ok := next[*http2.DataFrame](p)
				if !ok || len(f.Data()) > want {
					p.t.Errorf("%d more bytes are allowed, and the connection goes on: %v", want, ok)
					return false
				}
				want -= len(f.Data())
				got += len(f.Data())
			}
			return true
		}
		// No more comes before the answer to a ping.
		nothing := func() {
			if err := p.WritePing(false, [8]byte{}); err != nil {
				return
			}
			for {
				f, err := p.ReadFrame()
				if _, data := f.(*http2.DataFrame); data {
					p.t.Error("data without room")
				}
				if ping, _ := f.(*http2.PingFrame); ping != nil || err != nil {
					return
				}
			}
		}
		ok = take(10)
		nothing()
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4}) // the stream's window is -6
		_ = p.WriteWindowUpdate(stream, 6)
		nothing()
		_ = p.WriteWindowUpdate(stream, 1)
		ok = ok && take(1)
		_ = p.WriteSettings(
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: 50_004}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 20_000})
		ok = ok && take(50_000)
		_ = p.WriteWindowUpdate(stream, size)
		ok = ok && take(initialWindow-got) // the connection's
		nothing()
		_ = p.WriteWindowUpdate(0, size)
		if ok && take(size+messageHeader-got) {
			p.answer(stream)
		}
		p.drain()
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10})
	c := dial(t, address, Options{})
	if _, err := ask(t.Context(), c, "/a/b", make([]byte, size)); err != nil {
		t.Error(err)
	}
}

// TestCancelAmidRequest: a context that ends while a request waits for room resets its stream, and gives the room to others.
func TestCancelAmidRequest(t *testing.T) {
	full, reset := make(chan struct{}), make(chan struct{})
	address := play(t, func(p *peer) {
		for got := 0; got < initialWindow; {
			f, ok := next[*http2.DataFrame](p)
			if !ok {
				return
			}
			got += len(f.Data())
		}
		close(full)
		if f, ok := next[*http2.RSTStreamFrame](p); ok && f.ErrCode == http2.ErrCodeCancel {
			close(reset)
		}
		_ = p.WriteWindowUpdate(0, initialWindow)
		for {
			f, ok := next[*http2.DataFrame](p)
			if !ok {
				return
			}
			if f.StreamEnded() {
				p.answer(f.StreamID)
			}
		}
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c := dial(t, address, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var other sync.WaitGroup
	other.Go(func() {
		<-full
		cancel()
		<-reset
	})
	if _, err := ask(ctx, c, "/a/b", make([]byte, 2*initialWindow)); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
	if _, err := ask(t.Context(), c, "/a/b", make([]byte, 100)); err != nil {
		t.Errorf("the next call: %v", err)
	}
	other.Wait()
}

// TestMostStreams: no more calls are open at once than the server takes.
func TestMostStreams(t *testing.T) {
	address := play(t, func(p *peer) {
		open := uint32(0)
		for {
			f, err := p.ReadFrame()
			if err != nil {
				return
			}
			if h, ok := f.(*http2.HeadersFrame); ok {
				if open != 0 {
					p.t.Errorf("stream %d begins during %d", h.StreamID, open)
				}
				open = h.StreamID
			}
			if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
				open = 0
				p.answer(d.StreamID)
			}
		}
	}, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
	c := dial(t, address, Options{})
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			if _, err := ask(t.Context(), c, "/a/b", []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
}

// TestRefused: calls after the last stream that a server takes fail, the others go on.
func TestRefused(t *testing.T) {
	address := play(t, func(p *peer) {
		first, _ := next[*http2.HeadersFrame](p)
		_, ok := next[*http2.HeadersFrame](p)
		if !ok {
			return
		}
		_ = p.WriteGoAway(first.StreamID, http2.ErrCodeNo, nil)
		if f, ok := next[*http2.PingFrame](p); ok && !f.IsAck() {
			p.answer(1)
		}
		p.drain()
	})
	c := dial(t, address, Options{})
	taken, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t.Context(), c, "/a/b", nil); status.Code(err) != codes.Unavailable || c.Ended() {
		t.Errorf("the refused call: %v", err)
	}
	if !c.Ping() {
		t.Error("no ping")
	}
	if err := taken.Wait(t.Context()); err != nil || !c.Ended() {
		t.Errorf("the call that the server took: %v, ended: %v", err, c.Ended())
	}
}

// TestSilent: a server that sends nothing during a call is asked for a sign of life, and given up without one.
func TestSilent(t *testing.T) {
	c := dial(t, play(t, func(p *peer) { p.drain() }), Options{Silence: time.Millisecond, Patience: time.Millisecond})
	if _, err := ask(t.Context(), c, "/a/b", nil); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestPings: pings are few, and there are none without a call: servers end connections for that.
func TestPings(t *testing.T) {
	pings := make(chan int)
	address := play(t, func(p *peer) {
		n := 0
		for {
			f, err := p.ReadFrame()
			if err != nil {
				pings <- n
				return
			}
			switch f := f.(type) {
			case *http2.PingFrame:
				n++
				_ = p.WritePing(true, f.Data)
			case *http2.DataFrame:
				p.answer(f.StreamID)
			}
		}
	})
	c := dial(t, address, Options{})
	if c.Ping() {
		t.Error("a ping without a call")
	}
	s, err := c.Open(t.Context(), "/a/b", nil, &messagesOf{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.Ping() {
		t.Error("a ping after the last call")
	}
	if s, err = c.Open(t.Context(), "/a/b", nil, &messagesOf{}); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c.Ping()
	}
	_ = s.Wait(t.Context())
	c.Close()
	if n := <-pings; n > 1 {
		t.Errorf("%d pings", n)
	}
}

// written is a network connection whose writes a function takes.
type written struct {
	net.Conn
	take func([]byte) error
}

func (w written) Write(b []byte) (int, error)      { return len(b), w.take(b) }
func (w written) SetWriteDeadline(time.Time) error { return nil }
func (w written) Close() error                     { return nil }

// TestTakesTurns: a caller that finds more to write each time it has written hands over to another goroutine.
func TestTakesTurns(t *testing.T) {
	c := &Conn{broken: make(chan struct{}), keepalive: time.NewTimer(time.Hour)}
	free, writes := make(chan struct{}), 0
	c.out.net = written{take: func([]byte) error {
		if writes++; writes == turns+1 {
			<-free // until the caller has returned
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if writes < 10*turns {
			c.out.buf = append(c.out.buf, 'x')
		}
		return nil
	}}
	c.mu.Lock()
	c.out.buf = []byte("x")
	c.flush(0)
	c.mu.Unlock()
	close(free)
	c.owned.Wait()
	if writes != 10*turns || c.out.writing {
		t.Errorf("%d writes", writes)
	}
}

// TestWriteFails: who writes for others ends the connection if it cannot.
func TestWriteFails(t *testing.T) {
	c := &Conn{broken: make(chan struct{}), keepalive: time.NewTimer(time.Hour), calls: map[uint32]*call{}}
	c.raw = written{take: func([]byte) error { return errors.New("no") }}
	c.out.init(c.raw, "http", "here")
	c.next, c.most = 1, 1
	if _, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{}); err == nil {
		select {
		case <-c.broken:
		default:
			t.Error("the connection goes on")
		}
	}
	if _, err := c.Begin(t.Context(), "/a/b", nil, &messagesOf{}); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
}
