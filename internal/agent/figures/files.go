// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package figures

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FileSystem is how much room there is on one.
type FileSystem struct {
	Device           string // /dev/vda, or what it is called instead
	Bytes, Free      uint64 // free for who is not root
	Used             uint64
	Files, FilesFree uint64 // 0: as many as are needed
}

// FileSystem is the one that a path is on.
func (r Reader) FileSystem(path string) (*FileSystem, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return nil, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	f := &FileSystem{Bytes: s.Blocks * uint64(s.Bsize), Free: s.Bavail * uint64(s.Bsize), Used: (s.Blocks - s.Bfree) * uint64(s.Bsize), Files: s.Files, FilesFree: s.Ffree}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	f.Device = mounted(lines(filepath.Join(r.proc(), "self", "mountinfo")), fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev)))
	return f, nil
}

// mounted is what is mounted from a device, as the list of mounts calls it: the second word after the hyphen.
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

// Taken is what lies under a directory: the bytes of its blocks, and its files. A file of several names counts once; what goes away
// meanwhile, not.
func Taken(dir string) (bytes, files uint64) {
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		var s unix.Stat_t
		if unix.Lstat(path, &s) != nil || seen[s.Ino] {
			return nil
		}
		if s.Nlink > 1 {
			seen[s.Ino] = true
		}
		bytes, files = bytes+uint64(s.Blocks)*512, files+1
		return nil
	})
	if err != nil {
		return 0, 0
	}
	return bytes, files
}
