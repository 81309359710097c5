// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bytes"
	"encoding/binary"
	"net"
	"runtime"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	turns        = 4         // how often a caller writes until another goroutine takes over
	largestSpare = 256 << 10 // bytes of a buffer that is kept
)

// output is what a connection writes: frames are appended to buf, and written together. The connection's mutex guards it.
type output struct {
	net               net.Conn
	scheme, authority string

	buf, spare []byte
	writing    bool
	until      time.Time // the write deadline

	window  int64 // bytes of data that the server takes
	initial int64 // what it takes of a new stream
	frame   int   // its largest frame
	encoder *hpack.Encoder
	block   bytes.Buffer
}

func (o *output) init(to net.Conn, scheme, authority string) {
	o.net, o.scheme, o.authority = to, scheme, authority
	o.window, o.initial, o.frame = initialWindow, initialWindow, initialFrame
	o.encoder = hpack.NewEncoder(&o.block)
	o.encoder.SetMaxDynamicTableSizeLimit(initialTable)
}

func appendHeader(b []byte, kind http2.FrameType, flags http2.Flags, stream uint32, length int) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, stream)
}

func appendFrame(b []byte, kind http2.FrameType, flags http2.Flags, stream uint32, payload []byte) []byte {
	return append(appendHeader(b, kind, flags, stream, len(payload)), payload...)
}

func appendSettings(b []byte, settings ...http2.Setting) []byte {
	b = appendHeader(b, http2.FrameSettings, 0, 0, 6*len(settings))
	for _, s := range settings {
		b = binary.BigEndian.AppendUint16(b, uint16(s.ID))
		b = binary.BigEndian.AppendUint32(b, s.Val)
	}
	return b
}

func appendWindowUpdate(b []byte, stream, more uint32) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, http2.FrameWindowUpdate, 0, stream, 4), more)
}

func appendReset(b []byte, stream uint32) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(b, http2.FrameRSTStream, 0, stream, 4), uint32(http2.ErrCodeCancel))
}

// head appends the header of a request.
func (o *output) head(stream uint32, path string) {
	o.block.Reset()
	for _, f := range [...]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: o.scheme}, {Name: ":path", Value: path},
		{Name: ":authority", Value: o.authority}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
		{Name: "hasleader", Value: "true"},
	} {
		_ = o.encoder.WriteField(f) // into a buffer
	}
	o.buf = appendFrame(o.buf, http2.FrameHeaders, http2.FlagHeadersEndHeaders, stream, o.block.Bytes())
}

// flush writes what waits, unless another goroutine does, which takes it along. If others are likely to write soon, it lets them run first.
// The caller holds mu, which flush unlocks while it writes.
func (c *Conn) flush(others int) {
	o := &c.out
	if o.writing || len(o.buf) == 0 || c.err != nil {
		return
	}
	o.writing = true
	if others > 0 {
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for n := 0; len(o.buf) > 0 && c.err == nil; n++ {
		if n == turns { // a caller that only writes for others would not see its own answer
			c.owned.Go(c.carryOn)
			return
		}
		c.writeOut()
	}
	o.writing = false
}

// flushSoon writes what waits on a goroutine of its own: the reader must not wait for the server, which may wait for it. The caller holds
// mu.
func (c *Conn) flushSoon() {
	o := &c.out
	if o.writing || len(o.buf) == 0 || c.err != nil {
		return
	}
	o.writing = true
	c.owned.Go(c.carryOn) // the reader, which is owned too, runs as long as there is no error
}

// carryOn writes until nothing waits.
func (c *Conn) carryOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out.buf) > 0 && c.err == nil {
		c.writeOut()
	}
	c.out.writing = false
}

// writeOut writes what waits. The caller holds mu, which writeOut unlocks meanwhile, and has set writing.
func (c *Conn) writeOut() {
	o := &c.out
	b := o.buf
	o.buf, o.spare = o.spare[:0], nil
	c.mu.Unlock()
	err := o.write(b)
	c.mu.Lock()
	if cap(b) <= largestSpare {
		o.spare = b
	}
	if err != nil {
		c.end(err)
	}
}

// write writes to the connection. Only the goroutine that has set writing calls it.
func (o *output) write(b []byte) error {
	// A deadline for each write would cost more than most writes.
	if now := time.Now(); o.until.Sub(now) < writeTime/2 {
		o.until = now.Add(writeTime)
		if err := o.net.SetWriteDeadline(o.until); err != nil {
			return err
		}
	}
	_, err := o.net.Write(b)
	return err
}
