// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net"
	"path/filepath"
	"testing"
)

// What the node writes to the driver's socket reaches the suite, and the other way round; the end of either side ends the other.
func TestProxy(t *testing.T) {
	node, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	suite, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { _ = couple(node, suite); close(over) }()
	t.Cleanup(func() { node.Close(); <-over; suite.Close() })
	dial := func(l net.Listener) net.Conn {
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := dial(suite), dial(node)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		got := make([]byte, 2)
		if _, err := way[0].Write([]byte("hi")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(way[1], got); err != nil || string(got) != "hi" {
			t.Errorf("%q %v", got, err)
		}
	}
	a.Close()
	if n, err := b.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes after the end", n)
	}
}
