// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package disk

// Allocate implements [File], with a hole.
func (f file) Allocate(size int64) error {
	now, err := f.Size()
	if err != nil || now >= size {
		return err
	}
	return f.Truncate(size)
}

// Datasync implements [File].
func (f file) Datasync() error { return f.Sync() }
