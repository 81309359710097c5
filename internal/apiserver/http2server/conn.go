// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// conn is a connection. One goroutine reads it; handlers write to it.
type conn struct {
	server  *Server
	tls     *tls.Conn
	handler http.Handler
	ctx     context.Context
	end     context.CancelFunc
	state   *tls.ConnectionState
	remote  string

	in     *bufio.Reader
	framer *http2.Framer // reads only
	starts []*stream     // requests that were read and have not begun; the reader's alone

	mu       sync.Mutex
	err      error // why the connection takes no more frames; nil while it does
	streams  map[uint32]*stream
	last     uint32 // the highest stream of the client's
	running  int    // handlers
	queue    []*stream
	going    bool // GOAWAY was sent: no stream begins any more
	unacked  int  // settings of ours that the client has not acknowledged
	idled    int  // frames without effect since the last request
	idleFrom time.Time
	idle     *time.Timer
	window   recvWindow
	out      output
}

func newConn(ctx context.Context, s *Server, t *tls.Conn, h http.Handler) *conn {
	c := &conn{server: s, tls: t, handler: h, remote: t.RemoteAddr().String(), streams: map[uint32]*stream{}}
	c.ctx, c.end = context.WithCancel(ctx)
	state := t.ConnectionState()
	c.state = &state
	c.in = bufio.NewReaderSize((*source)(c), readBuffer)
	c.framer = http2.NewFramer(nil, c.in)
	c.framer.SetReuseFrames()
	c.framer.SetMaxReadFrameSize(s.o.FrameBytes)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	c.framer.MaxHeaderListSize = uint32(s.o.HeaderBytes)
	c.window.left = s.o.ConnWindow
	c.out.init(t, s.o.Take)
	return c
}

// serve reads the connection until it ends, and waits for nothing else: handlers may run on.
func (c *conn) serve() {
	defer c.tls.Close()
	err := c.begin()
	if err == nil {
		err = c.read()
	}
	if code := http2.ConnectionError(0); errors.As(err, &code) {
		c.linger(http2.ErrCode(code))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail(errors.New("http2: client disconnected"))
	if c.idle != nil {
		c.idle.Stop()
	}
}

// begin exchanges prefaces and settings.
func (c *conn) begin() error {
	o := &c.server.o
	c.mu.Lock()
	c.out.frame(http2.FrameSettings, 0, 0, appendSettings(nil,
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: o.FrameBytes},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: uint32(o.Streams)},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: uint32(o.HeaderBytes)},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(o.StreamWindow)}))
	if more := o.ConnWindow - initialWindow; more > 0 {
		c.out.windowUpdate(0, uint32(more))
	}
	c.unacked = 1
	c.flush()
	c.mu.Unlock()
	if err := c.tls.SetReadDeadline(time.Now().Add(prefaceTime)); err != nil {
		return err
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.in, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("the client's preface is not HTTP/2's")
	}
	f, err := c.framer.ReadFrame()
	if err != nil {
		return c.readError(err)
	}
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if err := c.settings(settings); err != nil {
		return err
	}
	if err := c.tls.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quit(); o.Idle > 0 {
		c.idleFrom = time.Now()
		c.idle = time.AfterFunc(o.Idle, c.rest)
	}
	return nil
}

// source is a connection as its reader's source.
type source conn

// Read reads from the client. First the requests begin that were read, and what waits to be written is: nothing more is there to read at once.
func (s *source) Read(p []byte) (int, error) {
	(*conn)(s).launch()
	return s.tls.Read(p)
}

// read reads frames.
func (c *conn) read() error {
	for {
		f, err := c.framer.ReadFrame()
		if err == nil {
			err = c.process(f)
		} else {
			err = c.readError(err)
		}
		if err == nil {
			continue
		}
		failed := http2.StreamError{}
		if !errors.As(err, &failed) {
			return err
		}
		c.mu.Lock()
		c.reset(failed.StreamID, failed.Code)
		err = c.overrun()
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// readError says what an error of the Framer means to the connection.
func (c *conn) readError(err error) error {
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	return err
}

// launch begins the requests that were read, and writes what waits.
func (c *conn) launch() {
	for i, st := range c.starts {
		c.server.workers.run(st)
		c.starts[i] = nil
	}
	c.starts = c.starts[:0]
	c.mu.Lock()
	c.flush()
	c.mu.Unlock()
}

// overrun ends a connection whose client sends what must be answered and does not read the answers. c.mu is held.
func (c *conn) overrun() error {
	if c.out.control > maxControlFrames || c.idled > maxIdleFrames {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	return nil
}

// flush writes the frames that wait, or leaves it to the goroutine that is writing. c.mu is held; it is given up meanwhile.
func (c *conn) flush() {
	more, err := c.out.flush(&c.mu)
	if err != nil {
		c.fail(err)
		_ = c.tls.Close() // the reader returns
	}
	if more {
		go func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.flush()
		}()
	}
}

// fail ends all streams with an error. c.mu is held.
func (c *conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.end()
	for _, st := range c.streams {
		st.abort(err)
	}
	c.streams = map[uint32]*stream{}
	c.queue = nil
	c.out.wake()
}

// linger tells the client why the connection ends, and reads on for a moment: data that is not read when a connection is closed takes the
// GOAWAY with it.
func (c *conn) linger(code http2.ErrCode) {
	_ = c.tls.SetWriteDeadline(time.Now().Add(lingerTime))
	c.mu.Lock()
	c.goaway(code)
	c.fail(http2.ConnectionError(code))
	_, _ = c.out.flush(&c.mu)
	c.mu.Unlock()
	_ = c.tls.CloseWrite()
	_ = c.tls.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.tls, lingerBytes)
}

// goaway appends GOAWAY, once. c.mu is held.
func (c *conn) goaway(code http2.ErrCode) {
	if c.going && code == http2.ErrCodeNo {
		return
	}
	c.going = true
	c.out.goaway(c.last, code)
}

// leave ends the connection when its requests have ended.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.depart()
	c.flush()
}

// depart says that no further streams begin. c.mu is held.
func (c *conn) depart() {
	c.goaway(http2.ErrCodeNo)
	c.quit()
}

// quit ends the connection's reader if the connection is to end and has no streams. c.mu is held. The client has lingerTime to take what
// is left, and to close the connection itself.
func (c *conn) quit() {
	if c.going && len(c.streams) == 0 && c.err == nil {
		_ = c.tls.SetReadDeadline(time.Now().Add(lingerTime))
	}
}

// rest ends a connection that has had no request for the idle time.
func (c *conn) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.going {
		return
	}
	left := c.server.o.Idle
	if len(c.streams) == 0 {
		if left -= time.Since(c.idleFrom); left <= 0 {
			c.depart()
			c.flush()
			return
		}
	}
	c.idle.Reset(left)
}

// remove drops a stream that has ended on both sides. c.mu is held.
func (c *conn) remove(st *stream) {
	if c.streams[st.id] != st {
		return
	}
	delete(c.streams, st.id)
	if len(c.streams) == 0 {
		c.idleFrom = time.Now()
		c.quit()
	}
}

// reset ends a stream with an error that the client is told. c.mu is held.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	if st := c.streams[id]; st != nil {
		st.abort(http2.StreamError{StreamID: id, Code: code})
		c.remove(st)
	}
	c.out.rst(id, code)
}

// ended notes that a handler has returned, and begins a request that waited for it.
func (c *conn) ended() {
	c.mu.Lock()
	c.running--
	var next *stream
	for len(c.queue) > 0 && next == nil {
		next, c.queue = c.queue[0], c.queue[1:]
		if next.err != nil {
			next = nil // reset while it waited
		}
	}
	if next != nil {
		c.running++
	}
	c.mu.Unlock()
	if next != nil {
		c.server.workers.run(next)
	}
}

// appendSettings appends settings as a frame's payload.
func appendSettings(b []byte, all ...http2.Setting) []byte {
	for _, s := range all {
		b = append(b, byte(s.ID>>8), byte(s.ID), byte(s.Val>>24), byte(s.Val>>16), byte(s.Val>>8), byte(s.Val))
	}
	return b
}
