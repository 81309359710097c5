// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// openDirs is the maximum number of directories that RemoveAll keeps open. A container may nest them arbitrarily deep.
	openDirs = 64
	// batch is the number of names that one read of a directory returns.
	batch = 1024
)

// RemoveAll removes a file or directory and everything below it, like os.RemoveAll, with two restrictions: it removes no mounts, and it
// keeps few directories open, however deeply they are nested. It leaves what it cannot remove, and returns the first error.
func RemoveAll(path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(parent)
	r := &remover{top: -1}
	if err := r.remove(parent, filepath.Base(path), 0); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// remover removes one tree.
type remover struct {
	top   int // the tree's top directory; -1: not open
	moved int
}

func (r *remover) remove(parent int, name string, depth int) error {
	err := unix.Unlinkat(parent, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST):
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	case depth == openDirs:
		return r.raise(parent, name)
	}
	fd, err := unix.Openat2(parent, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	if depth == 0 {
		r.top = fd
	}
	if err := r.empty(dir, depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(parent, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

// empty removes the contents of a directory, as far as possible.
func (r *remover) empty(dir *os.File, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(batch)
		if len(names) == 0 {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var first error
		removed := false
		for _, name := range names {
			err := r.remove(int(dir.Fd()), name, depth+1)
			if err == nil {
				removed = true
			} else if first == nil {
				first = err
			}
		}
		if !removed {
			return first
		}
	}
}

// raise moves a directory that is nested too deeply into the top directory, whose entries are removed until there are none.
func (r *remover) raise(parent int, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(parent, name, r.top, fmt.Sprintf("..raised-%d", r.moved), unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "move", Path: name, Err: err}
		}
		return nil
	}
}
