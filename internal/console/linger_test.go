// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// frame is a masked frame of a browser.
func frame(opcode byte, size int) []byte {
	out := []byte{0x80 | opcode}
	switch {
	case size < 126:
		out = append(out, 0x80|byte(size))
	case size < 1<<16:
		out = append(out, 0x80|126, byte(size>>8), byte(size))
	default:
		out = append(out, 0x80|127, 0, 0, 0, 0, byte(size>>24), byte(size>>16), byte(size>>8), byte(size))
	}
	// The mask and the payload look like close frames.
	return append(append(out, 0x88, 0x80, 0x88, 0x80), bytes.Repeat([]byte{0x88}, size)...)
}

// TestSocketWaitsForTheBrowser closes a WebSocket on the server's side. The connection stays until the browser has closed its side.
func TestSocketWaitsForTheBrowser(t *testing.T) {
	for name, c := range map[string]struct {
		sends  []byte
		closes bool
	}{
		"nothing":          {nil, false},
		"a close frame":    {frame(8, 2), true},
		"input":            {frame(2, 5), false},
		"input, and close": {append(frame(2, 200), frame(8, 0)...), true},
		"much, and close":  {append(append(frame(1, 70_000), frame(2, 0)...), frame(8, 2)...), true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				browser, server := net.Pipe()
				defer browser.Close()
				// A byte is in net/http's buffer already.
				sends := c.sends
				ahead := bufio.NewReader(server)
				if len(sends) > 0 {
					go func() { _, _ = browser.Write(c.sends[:1]) }()
					if _, err := ahead.Peek(1); err != nil {
						t.Fatal(err)
					}
					sends = sends[1:]
				}
				conn, _ := linger(server, bufio.NewReadWriter(ahead, bufio.NewWriter(server)))
				begin, closed := time.Now(), make(chan time.Duration, 1)
				go func() {
					_ = conn.Close()
					closed <- time.Since(begin)
				}()
				synctest.Wait()
				if len(closed) > 0 {
					t.Fatal("the connection is closed before the browser closes its side")
				}
				if len(sends) > 0 {
					if _, err := browser.Write(sends); err != nil {
						t.Fatal(err)
					}
				}
				want := lingerTime
				if c.closes {
					want = 0
				}
				if after := <-closed; after != want {
					t.Errorf("the connection is closed after %v, want %v", after, want)
				}
			})
		})
	}
}

// FuzzFrames decodes what browsers send. How it is cut into pieces does not matter.
func FuzzFrames(f *testing.F) {
	f.Add(frame(8, 2), 1)
	f.Add(append(frame(2, 300), frame(8, 0)...), 7)
	f.Add(append(frame(9, 3), frame(1, 70_000)...), 100)
	f.Fuzz(func(t *testing.T, sent []byte, piece int) {
		var whole, pieces frames
		whole.pass(sent)
		for p := range slices.Chunk(sent, max(1, piece)) {
			pieces.pass(p)
		}
		if whole.closed != pieces.closed || whole.left != pieces.left || !bytes.Equal(whole.head, pieces.head) {
			t.Errorf("whole: %+v, in pieces of %d: %+v", whole, piece, pieces)
		}
		if len(whole.head) > 13 {
			t.Errorf("a header of more than %d bytes", len(whole.head))
		}
	})
}
