// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"k8s.io/client-go/rest"
)

// framed is a connection of HTTP/2 at the level of frames.
type framed struct {
	*http2.Framer
	v       *victim
	conn    io.Closer
	stream  uint32 // the next
	encoder *hpack.Encoder
	block   bytes.Buffer

	mu    sync.Mutex
	code  http2.ErrCode            // of GOAWAY
	state map[uint32]string        // ":status" of a stream, or why it was reset
	of    map[http2.FrameType]int  // how many came
	more  chan struct{}            // closed and made anew with each frame
	ended chan struct{}            // closed with the connection
	says  func(f http2.Frame) bool // whether to go on reading
}

// frames opens a connection and reads what comes as long as says wants it; nil: to the end.
func (v *victim) frames(says func(f http2.Frame) bool, settings ...http2.Setting) *framed {
	v.t.Helper()
	u, err := url.Parse(v.config.Host)
	if err != nil {
		v.t.Fatal(err)
	}
	config, err := rest.TLSConfigFor(v.config)
	if err != nil {
		v.t.Fatal(err)
	}
	config = config.Clone()
	config.NextProtos, config.ServerName = []string{"h2"}, u.Hostname()
	conn, err := (&tls.Dialer{Config: config}).DialContext(v.t.Context(), "tcp", u.Host)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = conn.Close() })
	f := &framed{
		Framer: http2.NewFramer(conn, conn), v: v, conn: conn, stream: 1, state: map[uint32]string{}, of: map[http2.FrameType]int{},
		more: make(chan struct{}), ended: make(chan struct{}), says: says,
	}
	f.encoder = hpack.NewEncoder(&f.block)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		v.t.Fatal(err)
	}
	if err := f.WriteSettings(settings...); err != nil {
		v.t.Fatal(err)
	}
	go f.read()
	f.until("the server's settings", func() bool { return f.of[http2.FrameSettings] >= 2 }) // its own, and that it has ours
	if err := f.WriteSettingsAck(); err != nil {
		v.t.Fatal(err)
	}
	return f
}

func (f *framed) read() {
	defer close(f.ended)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.of[frame.Header().Type]++
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			f.state[frame.StreamID] = frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			f.state[frame.StreamID] = frame.ErrCode.String()
		case *http2.GoAwayFrame:
			f.code = frame.ErrCode
		}
		close(f.more)
		f.more = make(chan struct{})
		f.mu.Unlock()
		if f.says != nil && !f.says(frame) {
			return
		}
	}
}

// until waits for something of what was read.
func (f *framed) until(what string, is func() bool) {
	f.v.t.Helper()
	limit := time.After(2 * mostTime)
	for {
		f.mu.Lock()
		there, more := is(), f.more
		f.mu.Unlock()
		if there {
			return
		}
		select {
		case <-more:
		case <-f.ended:
			f.v.t.Fatalf("%s: the connection has ended", what)
		case <-limit:
			f.v.t.Fatalf("%s: not after %v", what, 2*mostTime)
		}
	}
}

// ends wants the server to end the connection.
func (f *framed) ends() {
	f.v.t.Helper()
	select {
	case <-f.ended:
	case <-time.After(mostTime):
		f.v.t.Errorf("the connection is open after %v", mostTime)
	}
}

// head is the block of a request's header, by names and values.
func (f *framed) head(path string, more ...string) []byte {
	f.block.Reset()
	fields := append([]string{":method", "GET", ":scheme", "https", ":path", path, ":authority", "x"}, more...)
	if f.v.config.BearerToken != "" {
		fields = append(fields, "authorization", "Bearer "+f.v.config.BearerToken)
	}
	for i := 0; i < len(fields); i += 2 {
		if err := f.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1], Sensitive: true}); err != nil {
			f.v.t.Fatal(err)
		}
	}
	return f.block.Bytes()
}

// get sends a request.
func (f *framed) get(path string) error {
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream, BlockFragment: f.head(path), EndStream: true, EndHeaders: true})
	f.stream += 2
	return err
}

const hostileMaps = "/api/v1/namespaces/default/configmaps"

// TestFramesOfResets opens streams and resets them at once, as fast as the connection takes them. The server starts a bounded number of
// requests at once, and ends the connection when too many wait.
func TestFramesOfResets(t *testing.T) {
	v := newVictim(t)
	before := runtime.NumGoroutine()
	for name, path := range map[string]string{"watches": hostileMaps + "?watch=1", "lists": hostileMaps} {
		t.Run(name, func(t *testing.T) {
			f := v.frames(nil)
			var err error
			for n := 0; n < 40_000 && err == nil; n++ {
				if err = f.get(path); err == nil {
					err = f.WriteRSTStream(f.stream-2, http2.ErrCodeCancel)
				}
				if n%10_000 == 0 {
					if now := runtime.NumGoroutine(); now > before+20_000 {
						t.Errorf("%d goroutines, %d before", now, before)
					}
					v.stands()
				}
			}
			v.stands()
			f.mu.Lock()
			defer f.mu.Unlock()
			if err != nil && f.code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("the connection has ended with %v, %v", err, f.code)
			}
		})
	}
}

// TestFramesWithoutWindow asks for lists and watches and gives no room for an answer. Nobody else waits, the answers are not kept in
// memory, and the server gives the streams up.
func TestFramesWithoutWindow(t *testing.T) {
	v := newVictim(t)
	for i := range 40 {
		m := fmt.Sprintf(`{"metadata":{"name":"large%d"},"data":{"a":%q}}`, i, strings.Repeat("x", 100_000))
		if code, body := v.say(request{method: "POST", path: hostileMaps, body: strings.NewReader(m)}); code != http.StatusCreated {
			t.Fatalf("%d %.300s", code, body)
		}
	}
	v.before = heap()
	f := v.frames(nil, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	const each = 150
	for range each {
		if err := errors.Join(f.get(hostileMaps), f.get(hostileMaps+"?watch=1&resourceVersion=0")); err != nil {
			t.Fatal(err)
		}
	}
	f.until("the beginning of all answers", func() bool { return len(f.state) == 2*each })
	v.stands()
	f.until("the end of all streams", func() bool { return f.of[http2.FrameRSTStream] == 2*each })
	v.stands()
}

// TestFramesOfContinuations sends heads that do not end. One that is too large ends the connection. Empty frames are read as they come and
// are not kept: the request is answered when its head ends.
func TestFramesOfContinuations(t *testing.T) {
	v := newVictim(t)
	t.Run("large", func(t *testing.T) {
		f := v.frames(nil)
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: bytes.Clone(f.head("/version")), EndStream: true})
		f.block.Reset()
		if err := f.encoder.WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("x", 16_000), Sensitive: true}); err != nil {
			t.Fatal(err)
		}
		more := f.block.Bytes()
		sent := 0
		for ; err == nil && sent < 64<<20; sent += len(more) {
			err = f.WriteContinuation(1, false, more)
		}
		f.ends()
		if sent >= 64<<20 {
			t.Errorf("%d bytes were read", sent)
		}
	})
	t.Run("empty", func(t *testing.T) {
		f := v.frames(nil)
		head := bytes.Clone(f.head("/version"))
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head[:3], EndStream: true}); err != nil {
			t.Fatal(err)
		}
		for n := range 200_000 {
			if err := f.WriteContinuation(1, false, nil); err != nil {
				t.Fatal(err)
			}
			if n%100_000 == 0 {
				v.stands()
			}
		}
		if err := f.WriteContinuation(1, true, head[3:]); err != nil {
			t.Fatal(err)
		}
		f.until("the answer", func() bool { return f.state[1] == "200" })
		v.stands()
	})
}

// TestFramesOfLargeHeads: a head that is larger than the server takes is answered 431, however it is divided.
func TestFramesOfLargeHeads(t *testing.T) {
	v := newVictim(t)
	for name, fields := range map[string][]string{
		"one field":   {"x-large", strings.Repeat("x", 1_200_000)},
		"many fields": strings.Split(strings.TrimSuffix(strings.Repeat("x-many,"+strings.Repeat("x", 200)+",", 5_500), ","), ","),
	} {
		t.Run(name, func(t *testing.T) {
			f := v.frames(nil)
			head := bytes.Clone(f.head("/version", fields...))
			const part = 200_000
			err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head[:part], EndStream: true})
			for at := part; err == nil && at < len(head); at += part {
				end := min(at+part, len(head))
				err = f.WriteContinuation(1, end == len(head), head[at:end])
			}
			select {
			case <-f.ended: // so it may be refused as well
			default:
				f.until("the answer", func() bool { return f.state[1] == "431" || f.code != http2.ErrCodeNo })
			}
			if f.mu.Lock(); f.state[1] == "200" {
				t.Errorf("it was answered, %v", err)
			}
			f.mu.Unlock()
		})
	}
	v.stands()
}

// TestFramesUnread sends what the server has to acknowledge, and does not read. The server keeps no acknowledgements beyond a bound.
func TestFramesUnread(t *testing.T) {
	v := newVictim(t)
	for name, c := range map[string]struct {
		write func(f *framed) error
		most  int
		ends  bool
	}{
		"pings":    {func(f *framed) error { return f.WritePing(false, [8]byte{}) }, 4_000_000, true},
		"settings": {func(f *framed) error { return f.WriteSettings() }, 150_000, false}, // one acknowledgement is owed at a time
		"requests": {func(f *framed) error { return f.get("/version") }, 4_000_000, true},
	} {
		t.Run(name, func(t *testing.T) {
			acknowledged := 0
			f := v.frames(func(frame http2.Frame) bool {
				if frame.Header().Type == http2.FrameSettings {
					acknowledged++
				}
				return acknowledged < 2
			})
			var err error
			n := 0
			for ; n < c.most && err == nil; n++ {
				err = c.write(f)
				if n%100_000 == 0 {
					v.stands()
				}
			}
			if c.ends && err == nil {
				t.Errorf("%d were taken", n)
			}
			v.stands()
		})
	}
}

// TestFramesOfManyStreams: requests beyond the bound of a connection are refused one by one, and those within it go on.
func TestFramesOfManyStreams(t *testing.T) {
	v := newVictim(t)
	f := v.frames(nil)
	const within, beyond = 1_000, 500
	for range within + beyond {
		if err := f.get(hostileMaps + "?watch=1&resourceVersion=0"); err != nil {
			t.Fatal(err)
		}
	}
	count := func(state string) (n int) {
		for _, s := range f.state {
			if s == state {
				n++
			}
		}
		return n
	}
	f.until("all answers", func() bool {
		return count("200") == within && count(http2.ErrCodeRefusedStream.String())+count(http2.ErrCodeProtocol.String()) == beyond
	})
	v.stands()
	if err := f.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
		t.Fatal(err)
	}
	last := f.stream
	f.until("room", func() bool {
		if s := f.state[f.stream-2]; f.stream == last || s != "" && s != "200" {
			if err := f.get("/version"); err != nil {
				t.Fatal(err)
			}
		}
		return f.state[f.stream-2] == "200"
	})
}
