// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// claimAddress is the socket that the node with real containers holds while it runs. It is abstract: each network namespace has its own,
// and the kernel takes it away when the process ends, however it ends.
const claimAddress = "@mortise-node"

// ClaimError says that a node with real containers runs in this network namespace.
type ClaimError struct {
	PID     int    // of the node's process; 0: it is of another PID namespace
	Command string // what it was started as; empty: it cannot be read
}

func (e *ClaimError) Error() string {
	who := ""
	switch {
	case e.PID > 0 && e.Command != "":
		who = fmt.Sprintf(" (process %d: %s)", e.PID, e.Command)
	case e.PID > 0:
		who = fmt.Sprintf(" (process %d)", e.PID)
	}
	return "another Mortise node with real containers runs on this machine" + who +
		": two would share the pods' bridge, the rules of Services and the host ports; stop it first, or start the other one with " +
		"--node simulated, or in a network namespace of its own"
}

// Claim claims the machine for a node with real containers until the claim is closed or the process ends. It returns a *ClaimError where
// another node has claimed it.
func Claim(ctx context.Context) (io.Closer, error) { return claim(ctx, claimAddress) }

func claim(ctx context.Context, address string) (io.Closer, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", address)
	if errors.Is(err, unix.EADDRINUSE) {
		if taken := holder(ctx, address); taken != nil {
			return nil, taken
		}
		return nil, &ClaimError{} // it has ended meanwhile
	}
	if err != nil {
		return nil, fmt.Errorf("claim the machine: %w", err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close() // it only asks whose the claim is
		}
	}()
	return l, nil
}

// holder finds the process that holds the claim; nil: there is none.
func holder(ctx context.Context, address string) *ClaimError {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", address)
	if err != nil {
		return nil
	}
	defer c.Close()
	taken := &ClaimError{}
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return taken
	}
	var cred *unix.Ucred
	if err := errors.Join(raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }),
		err); err != nil {
		return taken
	}
	taken.PID = int(cred.Pid)
	if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", taken.PID)); err == nil {
		taken.Command = strings.TrimSpace(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	return taken
}
