// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package safepath opens files that a container may have created or replaced. The agent runs as root outside of the
// container, so a symbolic link could lead it to files of the host, and a FIFO or a device could block it for ever. The
// functions check a file before they open it, never block, and never leave the given directory.
package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotRegular is returned for a link, a FIFO, a device, a socket or a directory.
var ErrNotRegular = errors.New("not a regular file")

// retries is the maximum number of times that Find starts again while directories below the root are renamed.
const retries = 100

// OpenRegular opens a regular file for reading. It follows no link in the path's last element and opens nothing but regular files: opening
// a FIFO would wait for a writer, and opening a device may have effects. It does not wait for leases either.
func OpenRegular(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	// The descriptor refers to the checked file, whatever has the name now.
	opened, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(opened), path), nil
}

// ReadRegular reads the beginning of a regular file, at most limit bytes.
func ReadRegular(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// ReadRegularEnd reads the end of a regular file, at most limit bytes.
func ReadRegularEnd(path string, limit int64) ([]byte, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	text, err := io.ReadAll(io.NewSectionReader(f, max(info.Size()-limit, 0), limit))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, nil
}

// Find finds a file of any type below a directory without opening its contents (O_PATH): the result is good for Stat and, as
// /proc/self/fd/N, as the source of a bind mount. Find follows links as long as they stay below the root.
func Find(root, sub string) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	var found int
	for range retries {
		found, err = unix.Openat2(dir, sub, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: sub, Err: err}
	}
	return os.NewFile(uintptr(found), sub), nil
}
