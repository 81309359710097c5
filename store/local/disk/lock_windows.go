// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/windows"

	"github.com/mortise-dev/mortise/store"
)

// SyncDir implements [FS]. It does nothing: Windows syncs no directories, and keeps their names in a journal.
func (OS) SyncDir(string) error { return nil }

// Lock implements [FS].
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	const how = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err = windows.LockFileEx(windows.Handle(f.Fd()), how, 0, math.MaxUint32, math.MaxUint32, &windows.Overlapped{})
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return nil, fmt.Errorf("lock %s: %w", name, store.ErrLocked)
	}
	return nil, &os.PathError{Op: "lock", Path: name, Err: err}
}
