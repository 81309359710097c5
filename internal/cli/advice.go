// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// advice is what to do next after an error of a start.
type advice struct {
	fits func(err error) bool
	do   string
}

// says fits errors whose text has a part: they are made from errors of the system that the text replaces.
func says(part string) func(err error) bool {
	return func(err error) bool { return strings.Contains(err.Error(), part) }
}

// is fits errors that wrap another.
func is(target error) func(err error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// advices is the table: the first that fits is shown.
func advices() []advice {
	return []advice{
		{says("the port is taken by another process"), "--listen 127.0.0.1:0 selects a free port; `ss -ltnp` shows which process has this one"},
		{says("is in use by another process"), "stop the other server or node, or choose another --data-dir"},
		{says("is not empty and not one of Mortise's"), "choose another --data-dir, or an empty directory"},
		{says("which this release does not know"), "use the release that wrote it, or restore a backup: mortise store restore"},
		{says("another Mortise node with real containers runs"), "mortise up --node simulated, or stop the other node"},
		{is(fs.ErrPermission), "run it as root, or choose a --data-dir and a --listen address that this user may use"},
		{is(syscall.ENOSPC), "`df -h` shows which file system is full"},
		{is(syscall.ECONNREFUSED), "start the server that the address names, or correct the address"},
		{is(context.DeadlineExceeded), "`mortise doctor` shows what does not answer"},
	}
}

// failStart prints why a start failed and what to do next, and returns exit code 1.
func failStart(p Program, err error) int {
	code := fail(p, err)
	for _, a := range advices() {
		if a.fits(err) {
			fmt.Fprintf(p.Err, "mortise: what to do: %s\n", a.do)
			return code
		}
	}
	fmt.Fprintln(p.Err, "mortise: what to do: `mortise doctor` examines this machine, and --log-level info shows more")
	return code
}
