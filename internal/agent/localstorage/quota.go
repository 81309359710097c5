// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Calls of btrfs, and their arguments (linux/btrfs.h).
const (
	subvolumeCreate = 0x5000940e // BTRFS_IOC_SUBVOL_CREATE
	quotaGroupLimit = 0x8030942b // BTRFS_IOC_QGROUP_LIMIT
	maxReferenced   = 1          // BTRFS_QGROUP_LIMIT_MAX_RFER
)

type subvolumeArguments struct {
	_    int64
	name [4088]byte
}

type quotaGroupArguments struct {
	group                               uint64 // 0: of the file's subvolume
	flags, referenced, exclusive        uint64
	reservedReferenced, reservedExclude uint64
}

// makeLimited makes a directory that can have a size of its own: a subvolume, where the file system is btrfs. Elsewhere it is a directory
// as any other.
func makeLimited(dir string) error {
	parent := filepath.Dir(dir)
	var s unix.Statfs_t
	if err := unix.Statfs(parent, &s); err != nil {
		return fmt.Errorf("look at file system: %w", err)
	}
	if s.Type != unix.BTRFS_SUPER_MAGIC {
		return os.Mkdir(dir, 0o777)
	}
	args := &subvolumeArguments{}
	copy(args.name[:len(args.name)-1], filepath.Base(dir))
	if err := call(parent, subvolumeCreate, unsafe.Pointer(args)); err != nil {
		return fmt.Errorf("create subvolume: %w", err)
	}
	return nil
}

// limit bounds the bytes of a directory that makeLimited made, if its file system has quotas on: `btrfs quota enable`.
func limit(dir string, bytes int64) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("look at file system: %w", err)
	}
	if s.Type != unix.BTRFS_SUPER_MAGIC || !isSubvolume(dir) {
		return nil
	}
	args := &quotaGroupArguments{flags: maxReferenced, referenced: uint64(bytes)}
	// ENOTCONN says that quotas are off.
	if err := call(dir, quotaGroupLimit, unsafe.Pointer(args)); err != nil && !errors.Is(err, unix.ENOTCONN) {
		return fmt.Errorf("limit subvolume: %w", err)
	}
	return nil
}

// isSubvolume reports whether a directory of btrfs is the root of a subvolume: a volume of an earlier version is none.
func isSubvolume(dir string) bool {
	const root = 256 // BTRFS_FIRST_FREE_OBJECTID
	var s unix.Stat_t
	return unix.Stat(dir, &s) == nil && s.Ino == root
}

// call calls the file system of a directory.
func call(dir string, request uintptr, args unsafe.Pointer) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(args)); errno != 0 {
		return errno
	}
	return nil
}
