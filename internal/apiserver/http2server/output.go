// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/mortise-dev/mortise/internal/apiserver/bufferedconn"
)

// output is what a connection writes: frames are appended to it, and flushed together. The connection's mutex guards it.
type output struct {
	tls  *tls.Conn
	held *bufferedconn.Conn // below TLS; nil: it cannot be held
	take time.Duration
	// until is the write deadline of the connection, the writer's alone.
	until time.Time

	buf     []byte
	control int // frames in buf that answer the client's
	// flushing is how many handlers have flushed and not returned, as those of watches.
	flushing int
	// A goroutine writes; a goroutine lets others run before it writes.
	writing, yielding bool
	settled           chan struct{} // closed when that one has written; nil: no goroutine waits for it
	blocked           line          // streams that wait for room

	window  int64 // bytes of data that the client takes
	initial int32 // what the client gives a new stream
	frames  int   // bytes of the largest frame that the client takes
	encoder *hpack.Encoder
	block   bytes.Buffer
}

// outputs are buffers of output.
var outputs sync.Pool

func (o *output) init(t *tls.Conn, take time.Duration) {
	o.tls, o.take = t, take
	o.held, _ = t.NetConn().(*bufferedconn.Conn)
	o.window, o.initial, o.frames = initialWindow, initialWindow, initialFrameBytes
	o.encoder = hpack.NewEncoder(&o.block)
	o.encoder.SetMaxDynamicTableSizeLimit(tableSize)
}

// buffer returns the buffer to append to.
func (o *output) buffer() []byte {
	if o.buf == nil {
		if b, ok := outputs.Get().(*[]byte); ok {
			o.buf = (*b)[:0]
		}
	}
	return o.buf
}

// appendHeader appends the header of a frame.
func appendHeader(b []byte, kind http2.FrameType, flags http2.Flags, id uint32, length int) []byte {
	b = append(b, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags))
	return binary.BigEndian.AppendUint32(b, id)
}

// frame appends a frame.
func (o *output) frame(kind http2.FrameType, flags http2.Flags, id uint32, payload []byte) {
	o.buf = append(appendHeader(o.buffer(), kind, flags, id, len(payload)), payload...)
}

func (o *output) rst(id uint32, code http2.ErrCode) {
	o.frame(http2.FrameRSTStream, 0, id, binary.BigEndian.AppendUint32(nil, uint32(code)))
	o.control++
}

func (o *output) windowUpdate(id, more uint32) {
	o.frame(http2.FrameWindowUpdate, 0, id, binary.BigEndian.AppendUint32(nil, more))
	o.control++
}

func (o *output) goaway(last uint32, code http2.ErrCode) {
	o.frame(http2.FrameGoAway, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), uint32(code)))
}

// headers appends a block of header fields, in as many frames as it needs.
func (o *output) headers(id uint32, block []byte, end bool) {
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for {
		n := min(len(block), o.frames)
		if n == len(block) {
			flags |= http2.FlagHeadersEndHeaders
		}
		o.frame(kind, flags, id, block[:n])
		if block = block[n:]; len(block) == 0 {
			return
		}
		kind, flags = http2.FrameContinuation, 0
	}
}

// full reports whether handlers that write have to wait for the client to take what is there.
func (o *output) full() bool { return len(o.buf) >= maxOutput && o.writing }

// room reports whether a handler may append data.
func (o *output) room() bool { return o.window > 0 && !o.full() }

// wake wakes the first of the streams that wait for room, if there is some.
func (o *output) wake() {
	if o.room() {
		o.blocked.poke()
	}
}

// pass ends the wait of a stream, and wakes the next.
func (o *output) pass(st *stream) {
	if o.blocked.leave(st) {
		o.wake()
	}
}

// flush writes what waits, unless another goroutine is writing: that one takes it along. The caller holds mu; flush unlocks it while it
// writes. After maxRounds it returns true: another goroutine is to go on, for the caller has an answer of its own to give.
//
// If others, as many as that, are likely to write soon, the writer lets them run first: they append the frames of their streams, which
// leave in the same record. On a busy machine that takes a while, so who knows of no others does not wait, and writes what those have who
// do.
func (o *output) flush(mu *sync.Mutex, others int) (more bool, err error) {
	for round := 0; len(o.buf) > 0 && !o.writing; round++ {
		if round == maxRounds {
			return true, nil
		}
		if others > 0 && len(o.buf) < maxOutput {
			if o.yielding {
				return false, nil // that goroutine writes
			}
			o.yielding = true
			o.yield(mu, others)
			if o.yielding = false; o.writing || len(o.buf) == 0 {
				return false, nil
			}
		}
		o.writing = true
		b := o.buf
		o.buf, o.control = nil, 0
		mu.Unlock()
		err := o.write(b)
		if cap(b) <= 2*maxOutput {
			outputs.Put(&b)
		}
		mu.Lock()
		o.ended()
		o.wake()
		if err != nil {
			return false, err
		}
	}
	return false, nil
}

// yield lets others run, until none of them has appended any more for as many times as there are others, maxPatience at most. Where a
// processor is idle, Gosched returns at once.
func (o *output) yield(mu *sync.Mutex, others int) {
	began := time.Now()
	for patience := min(others, maxPatience); patience > 0; patience-- {
		had := len(o.buf)
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		if len(o.buf) >= maxOutput || o.writing || time.Since(began) > maxYield {
			return
		}
		if len(o.buf) > had {
			patience = min(others, maxPatience) + 1
		}
	}
}

// ended notes that no goroutine writes any more.
func (o *output) ended() {
	if o.writing = false; o.settled != nil {
		close(o.settled)
		o.settled = nil
	}
}

// drain writes what waits, and returns when it and what others were writing is written. The caller holds mu; drain unlocks it while it
// waits.
func (o *output) drain(mu *sync.Mutex) error {
	for o.writing {
		if o.settled == nil {
			o.settled = make(chan struct{})
		}
		settled := o.settled
		mu.Unlock()
		<-settled
		mu.Lock()
	}
	_, err := o.flush(mu, 0)
	return err
}

// write writes to the connection.
func (o *output) write(b []byte) error {
	if len(b) <= initialFrameBytes { // one record of TLS
		return o.send(b)
	}
	o.held.Hold()
	err := o.send(b)
	if e := o.held.Release(); err == nil {
		err = e
	}
	return err
}

// send writes to TLS. The client has at least three quarters of the take time for each maxOutput bytes: a deadline for each write would
// cost more than most writes.
func (o *output) send(b []byte) error {
	for len(b) > 0 {
		if o.take > 0 {
			if now := time.Now(); o.until.Sub(now) < o.take*3/4 {
				o.until = now.Add(o.take)
				if err := o.tls.SetWriteDeadline(o.until); err != nil {
					return err
				}
			}
		}
		n, err := o.tls.Write(b[:min(len(b), maxOutput)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// recvWindow counts the bytes of bodies that the client may send.
type recvWindow struct {
	left int32 // that it may still send
	free int32 // that were read and the client has not been told
}

// take takes received bytes from the window; false: the client was not allowed to send them.
func (w *recvWindow) take(n int) bool {
	if n > int(w.left) {
		return false
	}
	w.left -= int32(n)
	return true
}

// give gives room back. It returns by how much the client's window is to be raised now: many small raises would be a frame each.
func (w *recvWindow) give(n, whole int32) (more uint32) {
	if w.free += n; w.free < whole/4 {
		return 0
	}
	n, w.free = w.free, 0
	w.left += n
	return uint32(n)
}
