// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A plug-in makes its socket by a path that fits into an address; the node's path to it does not.
func TestLongPaths(t *testing.T) {
	for _, name := range []string{"short", strings.Repeat("long", 30)} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		usual, err := os.MkdirTemp("", "l")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(usual) })
		if err := os.Symlink(dir, filepath.Join(usual, "d")); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(usual, "d", "s"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		c, err := Connect(t.Context(), filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	if _, err := Connect(t.Context(), "/"+strings.Repeat("none/", 40)+"s"); err == nil || !strings.Contains(err.Error(), "open directory") {
		t.Error(err)
	}
}

// Sockets whose paths are longer than an address are served, and closing them removes them and nothing else.
func TestListensAtLongPaths(t *testing.T) {
	for _, name := range []string{"short", strings.Repeat("long", 30)} {
		dir, err := os.MkdirTemp("", "l")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		path := filepath.Join(dir, name, "s")
		if _, err := Listen(t.Context(), path); err == nil {
			t.Error("a socket in no directory is served")
		}
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Connect(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket is left: %v", err)
		}
		other, err := Listen(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		_ = l.Close() // again: it is closed
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the socket of another is gone: %v", err)
		}
	}
}
