// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// deaf is a connection that delivers bytes, and takes what is written.
type deaf struct {
	net.Conn
	in io.Reader
}

func (d deaf) Read(b []byte) (int, error)       { return d.in.Read(b) }
func (d deaf) Write(b []byte) (int, error)      { return len(b), nil }
func (d deaf) SetWriteDeadline(time.Time) error { return nil }
func (d deaf) Close() error                     { return nil }

// FuzzReader: whatever a server sends, each call ends once, and a receiver gets whole messages only.
func FuzzReader(f *testing.F) {
	add := func(send func(p *peer)) {
		var b bytes.Buffer
		p := &peer{Framer: http2.NewFramer(&b, nil)}
		_ = p.WriteSettings()
		send(p)
		f.Add(b.Bytes())
	}
	add(func(p *peer) { p.answer(1); p.answer(3) })
	add(func(p *peer) { p.headers(1, true, ":status", "404") })
	add(func(p *peer) { _ = p.WriteGoAway(1, http2.ErrCodeNo, nil); p.answer(1) })
	add(func(p *peer) {
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 20})
		_ = p.WritePing(false, [8]byte{})
		_ = p.WriteWindowUpdate(1, 7)
		_ = p.WriteRSTStream(1, http2.ErrCodeCancel)
	})
	f.Fuzz(func(t *testing.T, sent []byte) {
		n := deaf{in: bytes.NewReader(sent)}
		c := &Conn{
			options: Options{Settled: func() {}}, raw: n, keepalive: time.NewTimer(time.Hour), next: 1, most: 10,
			calls: map[uint32]*call{}, ready: make(chan struct{}), broken: make(chan struct{}),
		}
		c.out.init(n, "http", "here")
		var streams []*Stream
		for range 2 {
			s, err := c.Begin(t.Context(), "/a/b", nil, receiver(func(m []byte) error {
				if len(m) > len(sent) {
					t.Errorf("a message of %d bytes", len(m))
				}
				return nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, s)
		}
		c.owned.Go(newReader(c).run)
		c.owned.Wait()
		for _, s := range streams {
			_ = s.Wait(t.Context())
		}
		if len(c.calls) != 0 || c.short != 0 || !c.Ended() {
			t.Errorf("%d calls are left", len(c.calls))
		}
	})
}
