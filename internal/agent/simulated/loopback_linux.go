// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// onLoopback binds a listener to the loopback device.
func onLoopback(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		// Before Linux 5.7 this needs a capability. Without it, only Accept keeps others out.
		_ = unix.BindToDevice(int(fd), "lo")
	})
}
