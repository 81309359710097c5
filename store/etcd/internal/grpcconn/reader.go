// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	frameHeader, messageHeader = 9, 5
	settleAfter                = 256 // frames after which what was read counts, though more has arrived
	largestMessage             = 1<<31 - 1
)

// reader reads a connection, on its goroutine.
type reader struct {
	conn    *Conn
	in      *bufio.Reader
	framer  *http2.Framer
	headers *hpack.Decoder
	greeted bool   // the server's settings are there
	head    head   // that is read
	size    int    // of its block, as far as it has arrived
	stream  uint32 // whose head it is
	last    bool   // it ends the stream
	unread  uint32 // bytes that the server has not been told of
	ended   []end
}

// head is what a block of headers says.
type head struct {
	http    string // :status
	content string // content-type
	code    int    // grpc-status, -1: none
	message string
}

// end is the end of a call, which its caller learns when all that has arrived is handled.
type end struct {
	call *call
	err  error
}

func newReader(c *Conn) *reader {
	r := &reader{conn: c, in: bufio.NewReaderSize(c.out.net, 32<<10)}
	r.framer = http2.NewFramer(nil, r.in)
	r.framer.SetReuseFrames()
	r.framer.SetMaxReadFrameSize(initialFrame)
	r.headers = hpack.NewDecoder(initialTable, r.field)
	r.headers.SetMaxStringLength(largestHeader)
	return r
}

func (r *reader) run() {
	err := r.loop()
	r.settle()
	r.conn.Fail(err)
}

func (r *reader) loop() error {
	for n := 1; ; n++ {
		f, err := r.framer.ReadFrame()
		if err != nil {
			return err
		}
		r.conn.frames.Add(1)
		if err := r.process(f); err != nil {
			return err
		}
		if n >= settleAfter || !r.more() {
			r.settle()
			n = 0
		}
	}
}

// more reports whether a whole frame has arrived.
func (r *reader) more() bool {
	if r.in.Buffered() < frameHeader {
		return false
	}
	b, err := r.in.Peek(frameHeader)
	return err == nil && r.in.Buffered() >= frameHeader+int(b[0])<<16+int(b[1])<<8+int(b[2])
}

func (r *reader) settle() {
	r.conn.options.Settled()
	for i, e := range r.ended {
		e.call.finish(e.err)
		r.ended[i] = end{}
	}
	r.ended = r.ended[:0]
}

func (r *reader) process(f http2.Frame) error {
	if _, settings := f.(*http2.SettingsFrame); !settings && !r.greeted {
		return errors.New("the server does not begin with its settings")
	}
	switch f := f.(type) {
	case *http2.DataFrame:
		return r.data(f)
	case *http2.HeadersFrame:
		r.stream, r.last, r.head, r.size = f.StreamID, f.StreamEnded(), head{code: -1}, 0
		return r.block(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		return r.block(f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.RSTStreamFrame:
		r.end(f.StreamID, status.Error(codes.Unavailable, fmt.Sprintf("the server resets the call: %v", f.ErrCode)))
	case *http2.SettingsFrame:
		return r.settings(f)
	case *http2.PingFrame:
		r.ping(f)
	case *http2.WindowUpdateFrame:
		r.widen(f.StreamID, int64(f.Increment))
	case *http2.GoAwayFrame:
		r.goAway(f)
	case *http2.PushPromiseFrame:
		return errors.New("the server pushes")
	}
	return nil
}

// find returns the call of a stream, nil if it has ended.
func (r *reader) find(stream uint32) *call {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[stream]
}

// ping takes an answer to a ping, or answers one: with the next request, or when a while has passed.
func (r *reader) ping(f *http2.PingFrame) {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		c.asking = false
		return
	}
	c.out.buf = appendFrame(c.out.buf, http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
	if c.later != nil || c.err != nil {
		return
	}
	c.later = time.AfterFunc(replyTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.later = nil
		c.flush(0)
	})
}

// data hands the messages of a frame to their receiver.
func (r *reader) data(f *http2.DataFrame) error {
	r.acknowledge(0, &r.unread, f.Length)
	one := r.find(f.StreamID)
	if one == nil {
		return nil // it was cancelled
	}
	if !f.StreamEnded() {
		r.acknowledge(f.StreamID, &one.unread, f.Length)
	}
	data := f.Data()
	begun := len(one.message) > 0
	if begun {
		one.message = append(one.message, data...)
		data = one.message
	}
	rest, err := messages(data, one.receiver)
	switch {
	case err != nil:
		r.abort(one, err)
		return nil
	case !begun:
		one.message = append(one.message, rest...)
	case len(rest) == 0 && cap(one.message) > largestSpare:
		one.message = nil
	case len(rest) < len(data):
		one.message = append(one.message[:0], rest...)
	}
	if f.StreamEnded() {
		r.end(f.StreamID, status.Error(codes.Unavailable, "the answer has no status"))
	}
	return nil
}

// messages hands the whole messages of data to a receiver, and returns the rest.
func messages(data []byte, to Receiver) (rest []byte, err error) {
	for len(data) >= messageHeader {
		n := binary.BigEndian.Uint32(data[1:])
		if data[0] != 0 || n > largestMessage {
			return nil, status.Error(codes.Internal, "a message is compressed or too large")
		}
		if uint32(len(data)-messageHeader) < n {
			break
		}
		if err := to.Receive(data[messageHeader : messageHeader+n]); err != nil {
			return nil, err
		}
		data = data[messageHeader+n:]
	}
	return data, nil
}

// acknowledge gives the server room again, when a quarter of its window is used.
func (r *reader) acknowledge(stream uint32, unread *uint32, n uint32) {
	if *unread += n; *unread < window/4 {
		return
	}
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.buf = appendWindowUpdate(c.out.buf, stream, *unread)
	c.flushSoon()
	*unread = 0
}

// block reads a part of a block of headers.
func (r *reader) block(fragment []byte, whole bool) error {
	if r.size += frameHeader + len(fragment); r.size > largestHeader {
		return errors.New("the server sends too many headers")
	}
	if _, err := r.headers.Write(fragment); err != nil {
		return err
	}
	if !whole {
		return nil
	}
	if err := r.headers.Close(); err != nil {
		return err
	}
	h := r.head
	var err error
	switch {
	case h.code > 0:
		err = status.Error(codes.Code(h.code), h.message)
	case h.code == 0 && r.last:
	case h.http == "200" && !strings.HasPrefix(h.content, "application/grpc"):
		err = status.Error(codes.Unknown, "the server answers with content of the type "+strconv.Quote(h.content))
	case r.last && (h.http == "" || h.http == "200"):
		err = status.Error(codes.Unavailable, "the answer has no status")
	case h.http == "200", !r.last && strings.HasPrefix(h.http, "1"): // more is to come
		return nil
	default:
		err = status.Error(codeOf(h.http), "the server answers with HTTP status "+strconv.Quote(h.http))
	}
	if r.last {
		r.end(r.stream, err)
	} else if one := r.find(r.stream); one != nil {
		r.abort(one, err)
	}
	return nil
}

// codeOf returns gRPC's code of an HTTP status, which a server of another kind answers with.
func codeOf(http string) codes.Code {
	switch http {
	case "400":
		return codes.Internal
	case "401":
		return codes.Unauthenticated
	case "403":
		return codes.PermissionDenied
	case "404":
		return codes.Unimplemented
	case "429", "502", "503", "504":
		return codes.Unavailable
	default:
		return codes.Unknown
	}
}

// field takes what counts of a block of headers.
func (r *reader) field(f hpack.HeaderField) {
	switch f.Name {
	case ":status":
		r.head.http = f.Value
	case "content-type":
		r.head.content = f.Value
	case "grpc-status":
		n, err := strconv.ParseUint(f.Value, 10, 16)
		if err != nil {
			n = uint64(codes.Unknown)
		}
		r.head.code = int(n)
	case "grpc-message":
		r.head.message = f.Value
		if strings.Contains(f.Value, "%") {
			if plain, err := url.PathUnescape(f.Value); err == nil {
				r.head.message = plain
			}
		}
	}
}

// end ends a call that the server has ended.
func (r *reader) end(stream uint32, err error) {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.calls[stream]
	if one == nil {
		return
	}
	if err == nil && len(one.message) > 0 {
		err = status.Error(codes.Internal, "the answer ends amid a message")
	}
	c.remove(one)
	r.ended = append(r.ended, end{one, err})
	c.endIdle()
}

// abort ends a call that the server goes on with.
func (r *reader) abort(one *call, err error) {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(one)
	r.ended = append(r.ended, end{one, err})
	c.flushSoon()
	c.endIdle()
}

func (r *reader) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	err := f.ForeachSetting(func(s http2.Setting) error {
		if err := s.Valid(); err != nil {
			return err
		}
		switch s.ID {
		case http2.SettingInitialWindowSize:
			more := int64(s.Val) - c.out.initial
			c.out.initial = int64(s.Val)
			for _, one := range c.calls {
				one.window += more
			}
		case http2.SettingMaxFrameSize:
			c.out.frame = int(s.Val)
		case http2.SettingMaxConcurrentStreams:
			c.most = s.Val
		case http2.SettingHeaderTableSize:
			c.out.encoder.SetMaxDynamicTableSize(min(s.Val, initialTable))
		}
		return nil
	})
	c.roomy()
	c.out.buf = appendFrame(c.out.buf, http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
	c.flushSoon()
	if !r.greeted {
		r.greeted = true
		close(c.ready)
	}
	return err
}

// widen gives more room to a stream, or to all.
func (r *reader) widen(stream uint32, more int64) {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if stream == 0 {
		c.out.window += more
	} else if one := c.calls[stream]; one != nil {
		one.window += more
	}
	c.roomy()
}

// goAway ends the calls that the server has not taken; it answers the others.
func (r *reader) goAway(f *http2.GoAwayFrame) {
	c := r.conn
	c.mu.Lock()
	c.going = true
	var refused []uint32
	for stream := range c.calls {
		if stream > f.LastStreamID {
			refused = append(refused, stream)
		}
	}
	c.roomy()
	c.endIdle()
	c.mu.Unlock()
	for _, stream := range refused {
		r.end(stream, status.Error(codes.Unavailable, "the server is going away"))
	}
}
