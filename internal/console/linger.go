// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// lingerTime limits how long the server waits for a browser to close its side of a WebSocket.
const lingerTime = 5 * time.Second

// lingering is the connection of a WebSocket that the API has taken over. The API closes it at once after its close frame, as
// kube-apiserver does. Firefox then drops all messages that it has not shown yet, such as why a terminal does not open, and a reset can
// drop them in any browser. So Close waits for the browser's close frame, as RFC 6455, section 7.1.1, has it, up to lingerTime.
type lingering struct {
	net.Conn
	once sync.Once
	err  error // of Close

	mu     sync.Mutex    // held while a goroutine reads; another one may close
	from   *bufio.Reader // what net/http has read already, then the connection
	frames frames
}

// linger wraps a connection that was hijacked from net/http.
func linger(conn net.Conn, rw *bufio.ReadWriter) (net.Conn, *bufio.ReadWriter) {
	l := &lingering{Conn: conn, from: rw.Reader}
	return l, bufio.NewReadWriter(bufio.NewReader(l), bufio.NewWriter(l))
}

// Read implements [net.Conn].
func (l *lingering) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.from.Read(p)
	l.frames.pass(p[:n])
	return n, err
}

// Close implements [net.Conn].
func (l *lingering) Close() error {
	l.once.Do(func() {
		l.drain()
		l.err = l.Conn.Close()
	})
	return l.err
}

// drain reads what the browser still sends, up to its close frame.
func (l *lingering) drain() {
	// A goroutine that reads goes on until then at the most, and this one after it.
	if err := l.SetReadDeadline(time.Now().Add(lingerTime)); err != nil {
		return
	}
	var b [512]byte
	for !l.closed() {
		if _, err := l.Read(b[:]); err != nil {
			return
		}
	}
}

func (l *lingering) closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.frames.closed
}

// frames follows the frames of a WebSocket's one direction (RFC 6455, section 5.2), to find the close frame.
type frames struct {
	head   []byte // the begin of a frame's header
	left   uint64 // bytes of the frame's payload that are still to come
	closed bool   // the close frame came
}

// pass takes the next bytes.
func (f *frames) pass(p []byte) {
	for len(p) > 0 && !f.closed {
		if f.left > 0 {
			n := min(f.left, uint64(len(p)))
			p, f.left = p[n:], f.left-n
			continue
		}
		f.head, p = append(f.head, p[0]), p[1:]
		if size, whole := payload(f.head); whole {
			const opcode, closing = 0x0f, 0x08
			f.closed = f.head[0]&opcode == closing
			f.head, f.left = f.head[:0], size
		}
	}
}

// payload returns the length of a frame's payload; whole: h is the whole header.
func payload(h []byte) (length uint64, whole bool) {
	if len(h) < 2 {
		return 0, false
	}
	long := 0
	switch length = uint64(h[1] & 0x7f); length {
	case 126:
		long = 2
	case 127:
		long = 8
	}
	want := 2 + long
	if masked := h[1]&0x80 != 0; masked {
		want += 4
	}
	if len(h) < want {
		return 0, false
	}
	if long > 0 {
		length = 0
		for _, b := range h[2 : 2+long] {
			length = length<<8 | uint64(b)
		}
	}
	return length, true
}
