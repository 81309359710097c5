// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// copyTree copies the contents of a directory into another one, with owners, modes and times. Files share their blocks with the source
// where the file system can (btrfs, XFS). Sockets and devices are left out. It follows no links, and never leaves the directories.
func copyTree(from, to string) error {
	source, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer target.Close()
	var dirs []string
	err = fs.WalkDir(source.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := source.Lstat(name)
		if err != nil {
			return err
		}
		switch {
		case name == ".":
			dirs = append(dirs, name)
			return nil
		case info.IsDir():
			dirs = append(dirs, name)
			return target.Mkdir(name, 0o700)
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := source.Readlink(name)
			if err != nil {
				return err
			}
			if err := target.Symlink(link, name); err != nil {
				return err
			}
			return own(target, name, info)
		case info.Mode().IsRegular():
			if err := copyFile(source, target, name); err != nil {
				return fmt.Errorf("copy %s: %w", name, err)
			}
			return adopt(target, name, info)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Directories last, since a new file changes their times.
	for i := len(dirs) - 1; i >= 0; i-- {
		info, err := source.Lstat(dirs[i])
		if err != nil {
			return err
		}
		if err := adopt(target, dirs[i], info); err != nil {
			return err
		}
	}
	top, err := os.Open(to)
	if err != nil {
		return err
	}
	defer top.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(top.Fd())))
}

// copyFile copies the contents of a file.
func copyFile(source, target *os.Root, name string) error {
	in, err := source.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := target.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		if _, err := io.Copy(out, in); err != nil {
			out.Close()
			return err
		}
	}
	return out.Close()
}

// adopt gives a copy the owner, the mode and the times of its source.
func adopt(target *os.Root, name string, info fs.FileInfo) error {
	if err := own(target, name, info); err != nil {
		return err
	}
	if err := target.Chmod(name, info.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)); err != nil {
		return err
	}
	return target.Chtimes(name, info.ModTime(), info.ModTime())
}

func own(target *os.Root, name string, info fs.FileInfo) error {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return target.Lchown(name, int(s.Uid), int(s.Gid))
	}
	return nil
}
