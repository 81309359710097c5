// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FileSystem returns the usage of the file system of a path.
func (r Reader) FileSystem(path string) (*FileSystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	size := uint64(s.Bsize)
	f := &FileSystem{Bytes: s.Blocks * size, Free: s.Bavail * size, Used: (s.Blocks - s.Bfree) * size, Files: s.Files, FilesFree: s.Ffree}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	f.Device = mounted(lines(filepath.Join(r.proc(), "self", "mountinfo")), fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	return f, nil
}

// mounted returns the source that is mounted from a device according to the list of mounts: the second word after the hyphen.
func mounted(mountinfo []string, device string) string {
	for _, l := range mountinfo {
		before, after, ok := strings.Cut(l, " - ")
		f, of := strings.Fields(before), strings.Fields(after)
		if ok && len(f) > 2 && len(of) > 1 && f[2] == device {
			return of[1]
		}
	}
	return ""
}

// Taken returns the usage of a directory: the bytes of its blocks, and its files. It counts a file with several names once. It skips what
// disappears meanwhile, and mounts below the directory. Containers may change names meanwhile: Taken follows no links, and opens
// directories only.
func Taken(dir string) (bytes, files uint64) {
	top, err := unix.Open(dir, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0
	}
	defer unix.Close(top)
	var s unix.Stat_t
	if err := unix.Fstat(top, &s); err != nil {
		return 0, 0
	}
	t := taken{device: s.Dev, seen: map[uint64]bool{}}
	t.count(&s)
	for names := []string{"."}; len(names) > 0; {
		name := names[len(names)-1]
		names = append(names[:len(names)-1], t.directory(top, name)...)
	}
	return t.bytes, t.files
}

// taken counts the files of a device.
type taken struct {
	device       uint64
	bytes, files uint64
	seen         map[uint64]bool
}

func (t *taken) count(s *unix.Stat_t) {
	if t.seen[s.Ino] {
		return
	}
	if s.Nlink > 1 && s.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.seen[s.Ino] = true
	}
	t.bytes, t.files = t.bytes+uint64(s.Blocks)*512, t.files+1
}

// directory counts the entries of one directory, and returns those that are directories.
func (t *taken) directory(top int, name string) (inner []string) {
	fd, err := unix.Openat2(top, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	for {
		entries, err := dir.Readdirnames(1024)
		for _, e := range entries {
			var s unix.Stat_t
			if unix.Fstatat(fd, e, &s, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) != nil || s.Dev != t.device {
				continue
			}
			t.count(&s)
			if s.Mode&unix.S_IFMT == unix.S_IFDIR {
				inner = append(inner, filepath.Join(name, e))
			}
		}
		if err != nil {
			return inner
		}
	}
}

// kernelRelease returns the kernel's version.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
