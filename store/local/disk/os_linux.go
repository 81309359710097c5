// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disk

import (
	"errors"
	"os"
	"syscall"
)

// Allocate implements [File]. A file system that cannot reserve space gets a file with a hole.
func (f file) Allocate(size int64) error {
	for {
		switch err := syscall.Fallocate(int(f.Fd()), 0, 0, size); {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS):
			return f.grow(size)
		default:
			return &os.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
	}
}

func (f file) grow(size int64) error {
	now, err := f.Size()
	if err != nil || now >= size {
		return err
	}
	return f.Truncate(size)
}

// Datasync implements [File].
func (f file) Datasync() error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}
