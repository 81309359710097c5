// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import "golang.org/x/sys/unix"

// space returns how many bytes of the file system of a directory are free for its user, and how many it has; 0: unknown.
func space(dir string) (free, total uint64) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Bsize <= 0 {
		return 0, 0
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize)
}
