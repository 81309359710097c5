// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// Lock locks a file for this process until the file is closed. It is an error if another process has the lock.
func Lock(f *os.File) error {
	const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	return windows.LockFileEx(windows.Handle(f.Fd()), how, 0, math.MaxUint32, math.MaxUint32, &windows.Overlapped{})
}

// syncDirectory does nothing: Windows syncs no directories, and keeps their names in a journal.
func syncDirectory(string) error { return nil }
