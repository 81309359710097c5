// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

// TestListenAt: the node's API is on kubelet's port unless another process has it.
func TestListenAt(t *testing.T) {
	lab := netlab.New(t)
	lab.Node.Do(func() error {
		for i, c := range []struct {
			address string
			port    int // 0: any other than 10250
		}{{"127.0.0.1:0", 10250}, {"127.0.0.1:0", 0}, {"127.0.0.1:12345", 12345}} {
			l, err := listenAt(c.address)
			if err != nil {
				return err
			}
			defer l.Close() // all stay open
			got := l.Addr().(*net.TCPAddr).Port
			if c.port != 0 && got != c.port || c.port == 0 && (got == 0 || got == 10250) {
				t.Errorf("%d: %s is on port %d, want %d", i, c.address, got, c.port)
			}
		}
		if l, err := listenAt("127.0.0.1:12345"); err == nil {
			_ = l.Close()
			t.Error("a port that was asked for is taken, and another is used")
		}
		return nil
	})
}
