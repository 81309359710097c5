// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// reader reads the frames of a connection. It belongs to the goroutine that reads.
type reader struct {
	*conn
	in     *bufio.Reader
	framer *http2.Framer
	starts []*stream // requests that were read and have not begun
}

func newReader(c *conn) *reader {
	r := &reader{conn: c}
	r.in = bufio.NewReaderSize((*source)(r), readBuffer)
	r.framer = http2.NewFramer(nil, r.in)
	r.framer.SetReuseFrames()
	r.framer.SetMaxReadFrameSize(c.server.o.FrameBytes)
	r.framer.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	r.framer.MaxHeaderListSize = uint32(c.server.o.HeaderBytes)
	return r
}

// begin exchanges prefaces and settings.
func (r *reader) begin() error {
	c := r.conn
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
	c.unacked, c.pings.allowed = 1, true
	c.flush(0)
	c.mu.Unlock()
	if err := c.tls.SetReadDeadline(time.Now().Add(prefaceTime)); err != nil {
		return err
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(r.in, preface); err != nil {
		return err
	}
	if string(preface) != http2.ClientPreface {
		return errors.New("the client's preface is not HTTP/2's")
	}
	f, err := r.framer.ReadFrame()
	if err != nil {
		return readError(err)
	}
	settings, ok := f.(*http2.SettingsFrame)
	if !ok || settings.IsAck() {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if err := r.settings(settings); err != nil {
		return err
	}
	if err := c.tls.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.quit(); o.Idle > 0 {
		c.idle.from = time.Now()
		c.idle.timer = time.AfterFunc(o.Idle, c.rest)
	}
	return nil
}

// source is a reader as the source of its buffer.
type source reader

// Read reads from the client. The requests begin before, and what waits is written: nothing more is there to read at once.
func (s *source) Read(p []byte) (int, error) {
	(*reader)(s).launch()
	return s.tls.Read(p)
}

// read reads frames.
func (r *reader) read(ctx context.Context) error {
	c := r.conn
	for {
		f, err := r.framer.ReadFrame()
		if err == nil {
			err = r.process(ctx, f)
		} else {
			err = readError(err)
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
func readError(err error) error {
	if errors.Is(err, http2.ErrFrameTooLarge) {
		return http2.ConnectionError(http2.ErrCodeFrameSize)
	}
	return err
}

// launch begins the requests that were read, and has what waits written: by another goroutine, for a client that does not read must not
// keep the server from reading.
func (r *reader) launch() {
	c := r.conn
	for i, st := range r.starts {
		c.at.workers.run(st)
		r.starts[i] = nil
	}
	r.starts = r.starts[:0]
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushApart()
}
