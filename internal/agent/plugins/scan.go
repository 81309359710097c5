// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// identity tells a socket from another one of the same path.
type identity struct {
	device, inode uint64
	made          syscall.Timespec
}

// scan finds the sockets in a directory and the directories below it, by their paths, and has all of these directories watched before it
// reads them. It has the directory's parent watched too: a directory that was removed tells of it only when the last plug-in has closed
// its socket there, but its parent tells of it at once. Names that begin with a dot are passed over. What goes away meanwhile is not
// there; its removal is an event.
func scan(dir string, watch func(dir string) error) (map[string]identity, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make plug-in directory: %w", err)
	}
	if err := watch(filepath.Dir(dir)); err != nil {
		return nil, fmt.Errorf("watch the parent of the plug-in directory: %w", err)
	}
	out := map[string]identity{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		hidden := path != dir && strings.HasPrefix(d.Name(), ".")
		switch {
		case errors.Is(err, fs.ErrNotExist) && path != dir:
			return nil
		case err != nil:
			return err
		case d.IsDir() && hidden:
			return fs.SkipDir
		case d.IsDir():
			// WalkDir calls this before it reads the directory.
			if err := watch(path); err != nil && !(errors.Is(err, fs.ErrNotExist) && path != dir) {
				return fmt.Errorf("watch %s: %w", path, err)
			}
		case !hidden:
			// A link counts as what it points to.
			if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
				stat := info.Sys().(*syscall.Stat_t)
				// The time of the last change of its contents: a change of mode or owner makes no other socket.
				out[path] = identity{uint64(stat.Dev), stat.Ino, stat.Mtim}
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read plug-in directory: %w", err)
	}
	return out, nil
}
