// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package durable replaces files so that neither a crash of the program nor one of the machine leaves half of one: what
// reads the file finds the old text or the new, and when a call has returned without an error the new one is on disk.
//
// It writes the new content to a hidden file beside the old one, syncs it, renames it to the old one's name, and syncs the
// directory so that the rename is durable. A crash may leave the hidden file behind, which has no effect.
package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file by one of these bytes and this mode, whatever the umask. The directory must be there.
func Write(path string, mode fs.FileMode, data []byte) error {
	return Stream(path, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// Stream replaces the file by what write writes, unless it returns an error: then the old file stays, and the error comes
// back with the path.
func Stream(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	f, err := os.CreateTemp(dir, "."+name+".*") // its owner's alone until it is whole
	if err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("replace %s: %w", path, err)
		}
	}()
	if err = write(f); err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDirectory(dir)
}

// Rename renames a file or a directory, whose contents are on disk, and syncs the directory that it is in then.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(to))
}
