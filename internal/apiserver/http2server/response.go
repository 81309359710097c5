// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
)

// bufferSize is how many bytes of an answer are kept until it is flushed: an answer that is not longer leaves in one piece.
const bufferSize = 4 << 10

// responseWriter is a stream as its request's [http.ResponseWriter]. One goroutine uses it, but for the deadlines.
type responseWriter struct {
	st       *stream
	header   http.Header
	status   int
	length   int64 // the Content-Length that the handler set; -1: none
	written  int64
	buf      *[]byte // nil: nothing is buffered
	sent     bool    // the header was
	trailers []string
	failed   error
}

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, bufferSize); return &b }}

// Header implements http.ResponseWriter.
func (w *responseWriter) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header, 8)
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter.
func (w *responseWriter) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if w.status != 0 {
		w.st.conn.server.logf("http2: superfluous WriteHeader call of %s with %d", w.st.r.URL.Path, status)
		return
	}
	if status < 200 {
		w.informational(status, w.header)
		return
	}
	w.status, w.length = status, -1
	if had := w.header["Content-Length"]; len(had) > 0 {
		n, err := strconv.ParseUint(had[0], 10, 63)
		if err != nil {
			delete(w.header, "Content-Length")
		} else {
			w.length = int64(n)
		}
	}
	for _, v := range w.header["Trailer"] {
		for name := range strings.SplitSeq(v, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				w.trailers = append(w.trailers, name)
			}
		}
	}
}

// informational sends a header of the class 1xx, after which the answer's own comes.
func (w *responseWriter) informational(status int, h http.Header) {
	c := w.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.st.err != nil || w.sent {
		return
	}
	c.out.encodeStatus(status)
	c.out.encodeFields(h)
	c.out.headers(w.st.id, c.out.block.Bytes(), false)
	c.flush(0)
}

// bodyless reports whether the answer has no body.
func (w *responseWriter) bodyless() bool {
	return w.st.r.Method == http.MethodHead || w.status == http.StatusNoContent || w.status == http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (w *responseWriter) Write(p []byte) (int, error) { return write(w, p) }

// WriteString implements io.StringWriter.
func (w *responseWriter) WriteString(s string) (int, error) { return write(w, s) }

func write[T string | []byte](w *responseWriter, p T) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed != nil:
		return 0, w.failed
	case w.status == http.StatusNoContent || w.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	}
	if w.written += int64(len(p)); w.length >= 0 && w.written > w.length {
		return 0, http.ErrContentLength
	}
	if w.st.r.Method == http.MethodHead {
		return len(p), nil
	}
	if len(w.buffered())+len(p) <= bufferSize {
		if w.buf == nil {
			w.buf = buffers.Get().(*[]byte)
		}
		*w.buf = append(*w.buf, p...)
		return len(p), nil
	}
	if err := w.send([]byte(p), false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// send sends the header, if it was not sent, what is buffered, and more. The stream's end follows if end is set.
func (w *responseWriter) send(more []byte, end bool) error {
	w.st.conn.mu.Lock()
	defer w.st.conn.mu.Unlock()
	return w.sendLocked(more, end)
}

// sendLocked is send. c.mu is held.
func (w *responseWriter) sendLocked(more []byte, end bool) error {
	st := w.st
	if st.err != nil {
		w.failed = st.err
		return st.err
	}
	if !w.sent {
		first := w.buffered()
		if len(first) == 0 {
			first = more
		}
		w.sendHeader(first, end)
		if st.localClosed {
			return nil
		}
	}
	if b := w.buffered(); len(b) > 0 {
		w.failed = st.data(b, end && len(more) == 0)
	}
	w.release()
	if w.failed == nil && (len(more) > 0 || end && !st.localClosed) {
		w.failed = st.data(more, end)
	}
	return w.failed
}

// sendHeader appends the answer's header. first is the beginning of the body, end says that there is nothing after it and what is buffered.
// c.mu is held.
func (w *responseWriter) sendHeader(first []byte, end bool) {
	w.sent = true
	c, h := w.st.conn, w.Header()
	c.out.encodeStatus(w.status)
	c.out.encodeFields(h)
	if _, has := h["Content-Type"]; !has && len(first) > 0 && w.length != 0 {
		if _, encoded := h["Content-Encoding"]; !encoded {
			c.out.encode("content-type", http.DetectContentType(first))
		}
	}
	head := w.st.r.Method == http.MethodHead && w.written > 0
	if end && w.length < 0 && (head || !w.bodyless() && len(w.trailers) == 0) {
		c.out.volatile("content-length", strconv.FormatInt(w.written, 10))
	}
	if _, has := h["Date"]; !has {
		c.out.volatile("date", date())
	}
	if h.Get("Connection") == "close" {
		c.goaway(http2.ErrCodeNo)
	}
	last := w.bodyless() || end && w.written == 0
	c.out.headers(w.st.id, c.out.block.Bytes(), last)
	if last {
		w.st.endLocal()
	}
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() { _ = w.FlushError() }

// FlushError is what [http.ResponseController] calls.
func (w *responseWriter) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	c := w.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !w.sent || len(w.buffered()) > 0 {
		if err := w.sendLocked(nil, false); err != nil {
			return err
		}
	}
	if !w.st.flushes {
		w.st.flushes = true
		c.out.flushing++
	}
	if !c.steps.has(w.st.turn) {
		c.flush(c.out.flushing - 1) // what one watch tells its client, another one often tells at the same time
	}
	if w.st.err != nil && !errors.Is(w.st.err, errEnded) {
		return w.st.err
	}
	return nil
}

// finish sends what is left of the answer. The caller flushes the connection.
func (w *responseWriter) finish() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	trailers := w.trailing()
	if !w.st.ended() {
		_ = w.send(nil, len(trailers) == 0) // a client that has gone needs no answer
		if len(trailers) > 0 {
			w.sendTrailers(trailers)
		}
	}
	w.release()
}

// buffered returns what is buffered.
func (w *responseWriter) buffered() []byte {
	if w.buf == nil {
		return nil
	}
	return *w.buf
}

// release gives the buffer back: the stream of a watch that waits for events holds none.
func (w *responseWriter) release() {
	if w.buf != nil {
		*w.buf = (*w.buf)[:0]
		buffers.Put(w.buf)
		w.buf = nil
	}
}

// ended reports whether the answer is whole, or is not wanted.
func (st *stream) ended() bool {
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	return st.localClosed || st.err != nil
}

// trailing returns the trailers of the answer.
func (w *responseWriter) trailing() http.Header {
	var out http.Header
	set := func(name string, values []string) {
		if out == nil {
			out = http.Header{}
		}
		out[name] = values
	}
	for _, name := range w.trailers {
		if v := w.header[name]; len(v) > 0 {
			set(name, v)
		}
	}
	for name, v := range w.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			set(http.CanonicalHeaderKey(rest), v)
		}
	}
	return out
}

func (w *responseWriter) sendTrailers(h http.Header) {
	c := w.st.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.st.err != nil || w.st.localClosed {
		return
	}
	c.out.block.Reset()
	for name, values := range h {
		for _, value := range values {
			if httpguts.ValidHeaderFieldName(name) && httpguts.ValidHeaderFieldValue(value) {
				c.out.encode(lower(name), value)
			}
		}
	}
	c.out.headers(w.st.id, c.out.block.Bytes(), true)
	w.st.endLocal()
}

// SetReadDeadline is what [http.ResponseController] calls.
func (w *responseWriter) SetReadDeadline(t time.Time) error {
	st := w.st
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	st.readUntil = t
	st.pokeReader()
	return nil
}

// SetWriteDeadline is what [http.ResponseController] calls. A deadline that has passed resets the stream at once, another one a write that
// the client does not take until then.
func (w *responseWriter) SetWriteDeadline(t time.Time) error {
	st := w.st
	st.conn.mu.Lock()
	defer st.conn.mu.Unlock()
	st.writeUntil = t
	if !t.IsZero() && !time.Now().Before(t) {
		_ = st.expire()
		return nil
	}
	st.poke()
	return nil
}

// Lasting implements lasting.Writer.
func (w *responseWriter) Lasting() *lasting.Response { return &w.st.lasting }

// EnableFullDuplex is what [http.ResponseController] calls: a stream is that always.
func (w *responseWriter) EnableFullDuplex() error { return nil }

// encodeStatus begins a block of header fields. c.mu is held.
func (o *output) encodeStatus(status int) {
	o.block.Reset()
	o.encode(":status", strconv.Itoa(status))
}

// encode appends a field to the block. c.mu is held.
func (o *output) encode(name, value string) {
	_ = o.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}) // to memory
}

// volatile appends a field that another answer will hardly have again, and which would only displace others from the table. c.mu is held.
func (o *output) volatile(name, value string) {
	b := o.block.AvailableBuffer()
	b = append(b, 0) // literal without indexing, RFC 7541, 6.2.2
	b = appendText(appendText(b, name), value)
	o.block.Write(b)
}

// appendText appends a string literal of RFC 7541, 5.2, without Huffman's code.
func appendText(b []byte, s string) []byte {
	if len(s) < 127 {
		return append(append(b, byte(len(s))), s...)
	}
	b = append(b, 127)
	n := len(s) - 127
	for ; n >= 128; n >>= 7 {
		b = append(b, byte(n)|128)
	}
	return append(append(b, byte(n)), s...)
}

// encodeFields appends the fields of a header to the block, in the order of their names. What HTTP/2 does not have is left out, and so are
// trailers. c.mu is held.
func (o *output) encodeFields(h http.Header) {
	var room [24]string
	names := room[:0]
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		switch name {
		case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
			continue
		}
		if strings.HasPrefix(name, http.TrailerPrefix) || !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		for _, value := range h[name] {
			if !httpguts.ValidHeaderFieldValue(value) {
				continue
			}
			switch name {
			case "Audit-Id", "Content-Length", "Date", "Warning", "Etag", "Last-Modified", "Location", "Retry-After":
				o.volatile(lower(name), value)
			default:
				o.encode(lower(name), value)
			}
		}
	}
}

// dated is a second, and its Date.
type dated struct {
	second int64
	text   string
}

var today atomic.Pointer[dated]

// date returns the Date of now.
func date() string {
	now := time.Now()
	d := today.Load()
	if d == nil || d.second != now.Unix() {
		d = &dated{now.Unix(), now.UTC().Format(http.TimeFormat)}
		today.Store(d)
	}
	return d.text
}
