// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
)

// stream is a request and its answer. The connection's mutex guards it, unless a field says otherwise.
type stream struct {
	conn     *conn
	id       uint32
	r        *http.Request // the handler's
	cancel   context.CancelFunc
	flushes  bool // its handler has flushed; the connection's mutex guards it
	expects  bool // the client waits for 100 before it sends the body; the handler's
	tooLarge bool // its header was

	err                       error // why it takes no more frames
	remoteClosed, localClosed bool
	window                    int64         // bytes of data that the client takes
	woken                     chan struct{} // holds one token when its writer is to look again; nil: it has never waited
	place                     *list.Element // among the streams that wait for the connection's room; nil: it does not wait
	writeUntil, readUntil     time.Time     // zero: no deadline

	body    body
	w       responseWriter   // the handler's
	lasting lasting.Response // goes on when the handler has returned, as that of a watch
	turn    uint64           // of the worker that takes its step, see steps; the handler's
}

// serve runs the handler.
func (st *stream) serve() {
	st.w.st = st
	switch {
	case !st.handle():
		st.end(false)
	case !st.lasting.GoesOn():
		st.end(true)
	default:
		st.goOn()
	}
}

// goOn goes on with an answer whose handler has returned.
func (st *stream) goOn() {
	ended, p := st.lasting.Run(func() func() { return st.conn.steps.rouse(st) })
	if ended {
		st.panicked(p)
		st.end(p == nil)
	}
}

// end ends the stream: with the rest of its answer, or because its handler has panicked.
func (st *stream) end(returned bool) {
	defer st.conn.ended(st)
	defer st.cancel()
	if returned {
		st.w.finish()
		st.close()
		return
	}
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	if st.err == nil {
		st.conn.reset(st.id, http2.ErrCodeInternal)
	}
	st.conn.flush(0)
}

// panicked logs the panic of a handler, if there was one.
func (st *stream) panicked(p any) {
	if p != nil && p != http.ErrAbortHandler {
		stack := make([]byte, 64<<10)
		stack = stack[:runtime.Stack(stack, false)]
		st.conn.server.logf("http2: panic serving %v: %v\n%s", st.conn.remote, p, stack)
	}
}

// handle calls the handler, and reports whether it has not panicked.
func (st *stream) handle() (returned bool) {
	defer func() {
		if !returned {
			st.panicked(st.lasting.End(recover()))
		}
	}()
	if st.tooLarge {
		http.Error(&st.w, "the header of the request is too large", http.StatusRequestHeaderFieldsTooLarge)
	} else {
		st.conn.handler.ServeHTTP(&st.w, st.r)
	}
	return true
}

// close ends the stream after its answer.
func (st *stream) close() {
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.err == nil {
		if !st.remoteClosed {
			c.out.rst(st.id, http2.ErrCodeNo) // the rest of the body is not wanted
		}
		st.err = errEnded
		c.remove(st)
	}
	c.give(int32(st.body.drop()))
	c.flush(c.running - c.out.flushing - 1)
}

// errEnded is the error of a stream whose handler has returned.
var errEnded = errors.New("http2: the handler has returned")

// abort ends the stream with an error. c.mu is held.
func (st *stream) abort(err error) {
	if st.err != nil {
		return
	}
	st.err = err
	st.body.fail(err)
	st.conn.give(int32(st.body.drop()))
	st.cancel()
	st.lasting.Wake()
	st.poke()
	st.pokeReader()
}

// endRemote notes that the client sends nothing more. c.mu is held.
func (st *stream) endRemote() {
	st.remoteClosed = true
	st.body.ended = true
	st.pokeReader()
}

// poke wakes the stream's writer.
func (st *stream) poke() { poke(st.woken) }

// pokeReader wakes who waits for the body.
func (st *stream) pokeReader() { poke(st.body.woken) }

func poke(c chan struct{}) {
	if c == nil {
		return
	}
	select {
	case c <- struct{}{}:
	default: // it is woken already
	}
}

// give gives room for the body back to the client. c.mu is held.
func (st *stream) give(n int32) {
	if st.remoteClosed || st.err != nil {
		return
	}
	if more := st.body.window.give(n, st.conn.server.o.StreamWindow); more > 0 {
		st.conn.out.windowUpdate(st.id, more)
	}
}

// await waits for a token, or until a deadline. The mutex is given up meanwhile.
func (st *stream) await(woken *chan struct{}, until time.Time) error {
	if *woken == nil {
		*woken = make(chan struct{}, 1)
	}
	ch := *woken
	var late <-chan time.Time
	if !until.IsZero() {
		left := time.Until(until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		timer := time.NewTimer(left)
		defer timer.Stop()
		late = timer.C
	}
	st.conn.mu.Unlock()
	defer st.conn.mu.Lock()
	select {
	case <-ch:
	case <-late: // the caller looks again, and finds the deadline passed
	}
	return nil
}

// data sends data, and the end of the stream after it. It returns when the data are in the connection's output. c.mu is held.
func (st *stream) data(p []byte, end bool) error {
	c := st.conn
	defer c.out.pass(st)
	for {
		if st.err != nil {
			return st.err
		}
		if len(p) == 0 {
			if end {
				c.out.buf = appendHeader(c.out.buffer(), http2.FrameData, http2.FlagDataEndStream, st.id, 0)
				st.endLocal()
			}
			return nil
		}
		n := int(min(int64(len(p)), int64(c.out.frames), st.window, c.out.window))
		if n <= 0 || c.out.full() {
			if c.flush(0); st.err != nil {
				return st.err
			}
			switch room := c.out.room(); {
			case room && st.window > 0:
				continue
			case room: // what it waits for is the stream's own window
				c.out.pass(st)
			default:
				c.out.blocked.join(st)
			}
			c.steps.pass(st.turn)
			if err := st.await(&st.woken, st.writeUntil); err != nil {
				return st.expire()
			}
			continue
		}
		var flags http2.Flags
		if end && n == len(p) {
			flags = http2.FlagDataEndStream
		}
		c.out.buf = append(appendHeader(c.out.buffer(), http2.FrameData, flags, st.id, n), p[:n]...)
		st.window -= int64(n)
		c.out.window -= int64(n)
		c.out.pass(st)
		if p = p[n:]; len(p) == 0 && end {
			st.endLocal()
			return nil
		}
		if len(c.out.buf) >= maxOutput {
			c.flush(0)
		}
	}
}

// expire resets a stream whose client does not take what is written. c.mu is held.
func (st *stream) expire() error {
	if st.err == nil {
		st.conn.reset(st.id, http2.ErrCodeInternal)
		st.err = fmt.Errorf("http2: write to stream: %w", os.ErrDeadlineExceeded)
		st.conn.flush(0)
	}
	return st.err
}

// endLocal notes that the answer is whole. c.mu is held.
func (st *stream) endLocal() {
	st.localClosed = true
	if st.remoteClosed {
		st.err = errEnded
		st.conn.remove(st)
	}
}

// body is what has arrived of a request's body and was not read. The connection's mutex guards it.
type body struct {
	declared, received int64
	buf                []byte // from at on
	at                 int
	ended, closed      bool
	err                error
	woken              chan struct{}
	trailer            [][2]string
	window             recvWindow
}

// append adds data. If half of the buffer was read already, that makes room before the buffer grows: for a reader that never has read all
// that is there, such as a slow one of an upload through a proxy, four windows are enough.
func (b *body) append(data []byte) {
	if b.at > 0 && (b.at == len(b.buf) || len(b.buf)+len(data) > cap(b.buf) && b.at >= len(b.buf)/2) {
		b.buf, b.at = b.buf[:copy(b.buf, b.buf[b.at:])], 0
	}
	if b.buf == nil {
		size := len(data)
		if b.declared > int64(size) && b.declared <= initialWindow {
			size = int(b.declared)
		}
		b.buf = bodyBuffer(size)
	}
	b.buf = append(b.buf, data...)
}

// release gives the buffer back when all of the body was read.
func (b *body) release() {
	if b.ended && b.at == len(b.buf) {
		giveBodyBuffer(b.buf)
		b.buf, b.at = nil, 0
	}
}

// largestKept is the size of the largest buffers of bodies that are used again.
const largestKept = 16 << 10

var bodyBuffers sync.Pool

// bodyBuffer returns an empty buffer for some bytes.
func bodyBuffer(size int) []byte {
	if size <= largestKept {
		if b, ok := bodyBuffers.Get().(*[]byte); ok && cap(*b) >= size {
			return *b
		}
	}
	return make([]byte, 0, size)
}

func giveBodyBuffer(b []byte) {
	if 0 < cap(b) && cap(b) <= largestKept {
		b = b[:0]
		bodyBuffers.Put(&b)
	}
}

// fail ends the body with an error.
func (b *body) fail(err error) {
	if b.err == nil && !b.ended {
		b.err = err
	}
}

// drop drops what was not read, and returns how many bytes that are.
func (b *body) drop() int {
	n := len(b.buf) - b.at
	giveBodyBuffer(b.buf)
	b.buf, b.at, b.closed = nil, 0, true
	return n
}

// bodyReader is a stream as its request's body.
type bodyReader stream

// Read implements io.Reader.
func (b *bodyReader) Read(p []byte) (int, error) {
	st := (*stream)(b)
	if st.expects {
		st.expects = false
		st.w.informational(http.StatusContinue, nil)
	}
	if len(p) == 0 {
		return 0, nil
	}
	c := st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if late := st.readUntil; !late.IsZero() && !time.Now().Before(late) {
			return 0, fmt.Errorf("http2: read body: %w", os.ErrDeadlineExceeded)
		}
		switch in := &st.body; {
		case in.at < len(in.buf):
			n := copy(p, in.buf[in.at:])
			in.at += n
			in.release()
			c.give(int32(n))
			st.give(int32(n))
			if c.out.control > 0 {
				c.flush(0)
			}
			return n, nil
		case in.closed && in.err == nil && st.err == nil:
			return 0, http.ErrBodyReadAfterClose
		case in.ended:
			for _, t := range in.trailer {
				st.r.Trailer[t[0]] = append(st.r.Trailer[t[0]], t[1])
			}
			in.trailer = nil
			return 0, io.EOF
		case in.err != nil:
			return 0, in.err
		case st.err != nil:
			return 0, st.err
		}
		if err := st.await(&st.body.woken, st.readUntil); err != nil {
			return 0, fmt.Errorf("http2: read body: %w", err)
		}
	}
}

// Close implements io.Closer.
func (b *bodyReader) Close() error {
	st := (*stream)(b)
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	st.conn.give(int32(st.body.drop()))
	st.pokeReader()
	return nil
}
