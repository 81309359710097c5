// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serverset

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// control makes the kernel end a connection on which nothing that was sent is acknowledged: it would go on for a quarter of an hour.
func control(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("bound the silence of a connection: %w", err)
	}
	return nil
}
