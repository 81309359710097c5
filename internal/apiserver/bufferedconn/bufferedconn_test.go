// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bufferedconn

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
)

// sink is a connection that counts writes.
type sink struct {
	net.Conn
	got    bytes.Buffer
	writes int
	err    error
}

func (s *sink) Write(p []byte) (int, error) {
	s.writes++
	if s.err != nil {
		return 0, s.err
	}
	return s.got.Write(p)
}

// one is a listener for one connection.
type one struct {
	net.Listener
	conn net.Conn
}

func (l *one) Accept() (net.Conn, error) { return l.conn, nil }

func accept(t *testing.T, s *sink) *Conn {
	t.Helper()
	c, err := Listen(&one{conn: s}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	own := FromContext(NewContext(t.Context(), c))
	if own == nil {
		t.Fatal("the connection is not in its context")
	}
	return own
}

func write(t *testing.T, c *Conn, size int, with byte) {
	t.Helper()
	if n, err := c.Write(bytes.Repeat([]byte{with}, size)); n != size || err != nil {
		t.Fatalf("wrote %d of %d bytes, %v", n, size, err)
	}
}

func TestHeldWritesLeaveAsOne(t *testing.T) {
	s := &sink{}
	c := accept(t, s)
	write(t, c, 1, 'a')
	if s.writes != 1 {
		t.Errorf("%d writes of a connection that is not held", s.writes)
	}
	for _, test := range []struct{ pieces, size, writes int }{{3, 1000, 1}, {5, 16 << 10, 2}, {1, 100 << 10, 1}, {0, 0, 0}} {
		s.writes = 0
		s.got.Reset()
		c.Hold()
		for i := range test.pieces {
			write(t, c, test.size, byte('a'+i))
		}
		if err := c.Release(); err != nil {
			t.Fatal(err)
		}
		var want []byte
		for i := range test.pieces {
			want = append(want, bytes.Repeat([]byte{byte('a' + i)}, test.size)...)
		}
		if s.writes != test.writes || !bytes.Equal(s.got.Bytes(), want) {
			t.Errorf("%d pieces of %d bytes: %d writes of %d bytes in all", test.pieces, test.size, s.writes, s.got.Len())
		}
	}
	s.writes = 0
	write(t, c, 1, 'z')
	if s.writes != 1 {
		t.Error("a connection that was released still holds")
	}
}

func TestErrorsAreToldOnRelease(t *testing.T) {
	s := &sink{err: errors.New("gone")}
	c := accept(t, s)
	c.Hold()
	write(t, c, 10, 'a')
	if err := c.Release(); !errors.Is(err, s.err) {
		t.Errorf("release: %v", err)
	}
	c.Hold()
	write(t, c, most, 'a')
	if _, err := c.Write([]byte("b")); !errors.Is(err, s.err) {
		t.Errorf("write beyond what is kept: %v", err)
	}
}

func TestOtherConnectionsHoldNothing(t *testing.T) {
	c := FromContext(NewContext(context.Background(), &sink{}))
	c.Hold()
	if err := c.Release(); err != nil || c != nil {
		t.Errorf("%v, %v", c, err)
	}
}
