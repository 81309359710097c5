// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"context"
	"errors"

	"golang.org/x/net/http2"
)

// process does what a frame asks for. A [http2.StreamError] resets a stream, another error ends the connection.
func (r *reader) process(ctx context.Context, f http2.Frame) error {
	c := r.conn
	if id := f.Header().StreamID; id > c.last && c.isGoing() {
		return r.ignore(f)
	}
	if f.Header().Type != http2.FramePing {
		c.pings.frames.Add(1)
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return r.headers(ctx, f)
	case *http2.DataFrame:
		return r.data(f)
	case *http2.WindowUpdateFrame:
		return r.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return r.rst(f)
	case *http2.SettingsFrame:
		return r.settings(f)
	case *http2.PingFrame:
		return r.ping(f)
	case *http2.PriorityFrame:
		if f.StreamDep == f.StreamID {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
		}
	case *http2.GoAwayFrame:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.depart()
		return nil
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle.frames++
	return c.overrun()
}

// isGoing reports whether GOAWAY was sent.
func (c *conn) isGoing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.going
}

// ignore drops a frame of a stream that began after GOAWAY: the client repeats its request on another connection, as GOAWAY told it.
func (r *reader) ignore(f http2.Frame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if data, ok := f.(*http2.DataFrame); ok {
		if !c.window.take(int(data.Length)) {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.give(int32(data.Length))
	}
	c.idle.frames++
	return c.overrun()
}

func (r *reader) settings(f *http2.SettingsFrame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() {
		if c.unacked--; c.unacked < 0 {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		return nil
	}
	if f.NumSettings() > maxSettings {
		return http2.ConnectionError(http2.ErrCodeEnhanceYourCalm)
	}
	initial := c.out.initial
	if err := f.ForeachSetting(r.setting); err != nil {
		return err
	}
	if err := c.resize(int64(c.out.initial) - int64(initial)); err != nil {
		return err
	}
	c.out.frame(http2.FrameSettings, http2.FlagSettingsAck, 0, nil)
	c.out.control++
	c.idle.frames++
	return c.overrun()
}

// setting takes over one of the client's settings. c.mu is held.
func (r *reader) setting(s http2.Setting) error {
	c := r.conn
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.out.encoder.SetMaxDynamicTableSize(s.Val)
	case http2.SettingMaxFrameSize:
		c.out.frames = int(min(s.Val, maxOutput))
	case http2.SettingInitialWindowSize:
		c.out.initial = int32(s.Val)
	}
	return nil
}

// resize changes the windows of all streams, once for all settings of a frame. c.mu is held.
func (c *conn) resize(more int64) error {
	if more == 0 {
		return nil
	}
	for _, st := range c.streams {
		if st.window += more; st.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if more > 0 && st.window > 0 && st.window <= more {
			st.poke() // it had none
		}
	}
	return nil
}

func (r *reader) ping(f *http2.PingFrame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.IsAck() && c.pings.answer(f.Data) {
		return nil
	}
	c.idle.frames++
	if !f.IsAck() {
		c.out.frame(http2.FramePing, http2.FlagPingAck, 0, f.Data[:])
		c.out.control++
	}
	return c.overrun()
}

// idleStream reports whether a stream of the client's has not begun. c.mu is held.
func (c *conn) idleStream(id uint32) bool { return id%2 == 0 || id > c.last }

func (r *reader) windowUpdate(f *http2.WindowUpdateFrame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		if c.out.window += int64(f.Increment); c.out.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		c.out.wake()
		return nil
	}
	st := c.streams[f.StreamID]
	switch {
	case st != nil:
		if st.window += int64(f.Increment); st.window > maxWindow {
			return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
		}
		st.poke()
	case c.idleStream(f.StreamID):
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (r *reader) rst(f *http2.RSTStreamFrame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.streams[f.StreamID]
	if st == nil {
		if c.idleStream(f.StreamID) {
			return http2.ConnectionError(http2.ErrCodeProtocol)
		}
		c.idle.frames++
		return c.overrun()
	}
	st.abort(http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode})
	c.remove(st)
	return nil
}

// errBody is the error of a body that is not as long as its header said.
var errBody = errors.New("request declared a Content-Length that its body does not have")

func (r *reader) data(f *http2.DataFrame) error {
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.streams[f.StreamID]
	if st == nil && c.idleStream(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	size := int(f.Length)
	if !c.window.take(size) {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if st == nil || st.remoteClosed {
		c.give(int32(size))
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeStreamClosed}
	}
	if !st.body.window.take(size) {
		c.give(int32(size))
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	data := f.Data()
	st.body.received += int64(len(data))
	short := f.StreamEnded() && st.body.declared >= 0 && st.body.received != st.body.declared
	if st.body.declared >= 0 && st.body.received > st.body.declared || short {
		c.give(int32(size))
		st.body.fail(errBody)
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	}
	if padding := size - len(data); padding > 0 {
		c.give(int32(padding))
		st.give(int32(padding))
	}
	if len(data) == 0 && !f.StreamEnded() {
		c.idle.frames++
		return c.overrun()
	}
	if st.body.closed {
		c.give(int32(len(data)))
	} else {
		st.body.append(data)
	}
	if f.StreamEnded() {
		st.endRemote()
	} else {
		st.pokeReader()
	}
	return nil
}

// give gives room for bodies back to the client. c.mu is held.
func (c *conn) give(n int32) {
	if more := c.window.give(n, c.server.o.ConnWindow); more > 0 {
		c.out.windowUpdate(0, more)
	}
}
