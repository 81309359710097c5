// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/mortise-dev/mortise/internal/apiserver/bufferedconn"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/segments"
)

const (
	gzipFrom = 128 << 10 // the size above which an answer is compressed for clients that accept it
	sendFrom = 32 << 10  // how much of an answer is gathered before it is sent
)

// answer sends an answer as it is made. It holds the beginning back, so that an answer that ends within it has a length and
// an error in it is still a clean one. What is longer than gzipFrom is compressed for a client that accepts it.
type answer struct {
	*req
	code  int
	media string
	gzips bool
	buf   []byte // not sent yet; its maker may append to it and then calls spill
	limit int    // of buf
	// joins is true when the answer is compressed already, and consists of what join gets. Nothing is gathered then.
	joins  bool
	joined segments.Writer
	// out is where it is sent; nil: nothing was sent yet.
	out      io.Writer
	conn     *http.ResponseController
	buffered *bufferedconn.Conn // held from the first byte that is sent to the last
	until    time.Time          // when the write deadline passes that was set last
}

// stream sends an answer while make writes it. An error before anything was sent is returned; one in the middle ends the
// connection, so that no client takes what it got for whole.
func (q *req) stream(code int, media string, make func(*answer) error) error {
	w := &answer{req: q, code: code, media: media, gzips: negotiate.AcceptsGzip(q.r), limit: sendFrom}
	if w.gzips {
		w.limit = gzipFrom
	}
	err := make(w)
	if err == nil {
		err = w.end()
	}
	if z, ok := w.out.(*gzip.Writer); ok {
		q.accepts.unzip(z)
	}
	if err != nil && w.out != nil {
		_ = w.buffered.Release() // there is an error already
		panic(http.ErrAbortHandler)
	}
	return err
}

// Write gathers p, and sends what is gathered when that is enough.
func (w *answer) Write(p []byte) (int, error) {
	if len(w.buf)+len(p) <= w.limit {
		w.buf = append(w.buf, p...)
		return len(p), nil
	}
	if err := w.begin(); err != nil {
		return 0, err
	}
	if err := w.send(w.buf); err != nil {
		return 0, err
	}
	w.buf = w.buf[:0]
	return len(p), w.send(p)
}

// spill sends what is gathered when that is enough.
func (w *answer) spill() error {
	if len(w.buf) <= w.limit {
		return nil
	}
	if err := w.begin(); err != nil {
		return err
	}
	b := w.buf
	w.buf = w.buf[:0]
	return w.send(b)
}

// begin sends the headers of a response of unknown length.
func (w *answer) begin() error {
	if w.out != nil {
		return nil
	}
	w.out = w.w
	if w.gzips {
		h := w.w.Header()
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
	}
	switch {
	case w.joins:
		w.joined.W = w.w
	case w.gzips:
		z, err := w.accepts.zipper(w.w)
		if err != nil {
			return fmt.Errorf("compress answer: %w", err)
		}
		w.out = z
	}
	w.limit = sendFrom
	w.conn = http.NewResponseController(w.w)
	if w.r.ProtoMajor == 1 {
		w.buffered = bufferedconn.FromContext(w.r.Context())
		w.buffered.Hold()
	}
	w.headers(w.media)
	w.w.WriteHeader(w.code)
	return nil
}

// send writes to the client.
func (w *answer) send(b []byte) error {
	if err := w.extend(); err != nil {
		return err
	}
	_, err := w.out.Write(b)
	return err
}

// join writes a compressed piece to the client.
func (w *answer) join(s *segments.Segment) error {
	if err := w.extend(); err != nil {
		return err
	}
	return w.joined.Add(s)
}

// extend extends the deadline while the client keeps reading, when a quarter of the time has passed. In-process responses have none.
func (w *answer) extend() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	now := time.Now()
	if w.until.Sub(now) > writeTimeout*3/4 {
		return nil
	}
	w.until = now.Add(writeTimeout)
	_ = w.conn.SetWriteDeadline(w.until)
	return nil
}

func (w *answer) end() error {
	if w.out == nil {
		w.headers(w.media)
		w.w.Header()["Content-Length"] = []string{strconv.Itoa(len(w.buf))}
		w.w.WriteHeader(w.code)
		_, _ = w.w.Write(w.buf) // a client that went away needs no answer
		return nil
	}
	if w.joins {
		if err := w.joined.Close(); err != nil {
			return err
		}
	} else if err := w.send(w.buf); err != nil {
		return err
	}
	if z, ok := w.out.(*gzip.Writer); ok {
		if err := z.Close(); err != nil {
			return err
		}
	}
	if err := w.buffered.Release(); err != nil {
		return err
	}
	_ = w.conn.SetWriteDeadline(time.Time{})
	return nil
}

// acceptCache remembers Accept headers, and keeps compressors, which are large, for those that come.
type acceptCache struct {
	negotiate.Cache
	zips sync.Pool // of *gzip.Writer
}

// zipper is a compressor that writes to w.
func (c *acceptCache) zipper(w io.Writer) (*gzip.Writer, error) {
	if z, ok := c.zips.Get().(*gzip.Writer); ok {
		z.Reset(w)
		return z, nil
	}
	return gzip.NewWriterLevel(w, gzip.BestSpeed)
}

// unzip keeps a compressor that is not used any more.
func (c *acceptCache) unzip(z *gzip.Writer) {
	z.Reset(io.Discard)
	c.zips.Put(z)
}
