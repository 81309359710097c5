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
