// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A socket is reached even if its path is longer than the kernel takes.
func TestLongSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /proc/self/fd")
	}
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", "csi.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := connect(t.Context(), filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := connect(t.Context(), filepath.Join(dir, "none.sock")); err == nil {
		t.Error("connected to a socket that is not there")
	}
}
