// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package grpcconn

import (
	"context"
	"encoding/binary"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Receiver takes the messages of a call, in their order, on the goroutine that reads the connection. It must not block, and must not keep
// the bytes. An error ends the call.
type Receiver interface {
	Receive(message []byte) error
}

// call is a request without an answer.
type call struct {
	receiver Receiver
	stream   uint32
	window   int64 // bytes of data that the server takes; guarded by the connection's mutex
	ended    bool  // also
	short    bool  // it ends with its answer
	done     chan error

	// Only the reader uses these.
	message []byte // the part of a message that has arrived
	unread  uint32 // bytes that the server has not been told of
}

// finish ends a call, whose stream is not in the connection's list any more. The first end counts.
func (c *call) finish(err error) {
	select {
	case c.done <- err:
	default:
	}
}

// Stream is a call that may send more messages.
type Stream struct {
	conn *Conn
	call *call
}

// Begin sends a request, of a call without another one. The caller may use its bytes again.
func (c *Conn) Begin(ctx context.Context, path string, request []byte, r Receiver) (*Stream, error) {
	return c.begin(ctx, path, r, request, true)
}

// Open begins a call with a message that more may follow.
func (c *Conn) Open(ctx context.Context, path string, request []byte, r Receiver) (*Stream, error) {
	return c.begin(ctx, path, r, request, false)
}

// Wait returns when the call ends; nil: as the server wanted. If ctx ends before, the call is cancelled.
func (s *Stream) Wait(ctx context.Context) error {
	select {
	case err := <-s.call.done:
		return err
	case <-ctx.Done():
		s.conn.drop(s.call)
	}
	select {
	case err := <-s.call.done: // meanwhile
		return err
	default:
		return status.FromContextError(ctx.Err()).Err()
	}
}

// Send sends one more message. One goroutine at a time may call it.
func (s *Stream) Send(ctx context.Context, message []byte) error {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.conn.send(ctx, s.call, message, false)
}

// begin opens a stream and sends the first message.
func (c *Conn) begin(ctx context.Context, path string, r Receiver, request []byte, last bool) (*Stream, error) {
	one := &call{receiver: r, short: last, done: make(chan error, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && !c.going && uint32(len(c.calls)) >= c.most {
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
	switch {
	case c.err != nil:
		return nil, c.err
	case c.going || c.next >= lastStream:
		c.going = true
		return nil, status.Error(codes.Unavailable, "the connection takes no more calls")
	}
	one.stream, one.window = c.next, c.out.initial
	c.next += 2
	c.calls[one.stream] = one
	if one.short {
		c.short++
	}
	c.out.head(one.stream, path)
	if err := c.send(ctx, one, request, last); err != nil {
		c.forget(one)
		c.flush(0)
		c.endIdle()
		return nil, err
	}
	return &Stream{c, one}, nil
}

// send writes a message, in as many frames as it needs, as fast as the server takes it. The caller holds mu.
func (c *Conn) send(ctx context.Context, one *call, message []byte, last bool) error {
	var prefix [5]byte
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(message)))
	before := prefix[:]
	for len(before)+len(message) > 0 {
		if c.err != nil {
			return c.err
		}
		if one.ended {
			return nil // the call's end says why
		}
		n := int(min(int64(len(before)+len(message)), int64(c.out.frame), c.out.window, one.window))
		if n <= 0 {
			if len(c.out.buf) > 0 && !c.out.writing {
				c.flush(0) // meanwhile the server may take more
				continue
			}
			if err := c.wait(ctx); err != nil {
				return err
			}
			continue
		}
		c.out.window -= int64(n)
		one.window -= int64(n)
		flags := http2.Flags(0)
		if last && n == len(before)+len(message) {
			flags = http2.FlagDataEndStream
		}
		c.out.buf = appendHeader(c.out.buf, http2.FrameData, flags, one.stream, n)
		k := min(n, len(before))
		c.out.buf = append(append(c.out.buf, before[:k]...), message[:n-k]...)
		before, message = before[k:], message[n-k:]
	}
	c.flush(c.short - 1)
	return nil
}

// wait waits until the server takes more, or the connection breaks. The caller holds mu, which wait unlocks meanwhile.
func (c *Conn) wait(ctx context.Context) error {
	if c.room == nil {
		c.room = make(chan struct{})
	}
	room := c.room
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// drop cancels a call.
func (c *Conn) drop(one *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(one)
	c.flush(0)
	c.endIdle()
}

// forget takes a call that the server has not ended from the list, and appends what tells the server. The caller holds mu.
func (c *Conn) forget(one *call) {
	if c.remove(one) {
		c.out.buf = appendReset(c.out.buf, one.stream)
	}
}

// remove takes a call from the list, and reports whether it was there. The caller holds mu.
func (c *Conn) remove(one *call) bool {
	if c.calls[one.stream] != one {
		return false
	}
	delete(c.calls, one.stream)
	one.ended = true
	if one.short {
		c.short--
	}
	c.roomy()
	return true
}
