// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/program"
)

// System mounts through system calls.
type System struct{}

var _ Mounter = System{}

// Tmpfs mounts memory at dir. A size of zero means half of the machine's memory.
func (System) Tmpfs(dir string, size int64) error {
	data := ""
	if size > 0 {
		data = fmt.Sprintf("size=%d", size)
	}
	return os.NewSyscallError("mount", unix.Mount("tmpfs", dir, "tmpfs", 0, data))
}

// Huge mounts huge pages at dir.
func (System) Huge(dir string, page int64) error {
	return os.NewSyscallError("mount", unix.Mount("nodev", dir, "hugetlbfs", 0, fmt.Sprintf("pagesize=%d", page)))
}

// mountTime is the time limit of mount(8). mount.nfs tries for two minutes to reach a server that does not respond.
const mountTime = 10 * time.Minute

// Mount runs mount(8), which knows the helpers of file systems, until ctx ends. The source and the directory are never read as options, and
// mount(8) does not get the agent's environment.
func (System) Mount(ctx context.Context, source, dir, kind string, options []string) error {
	args := []string{"-t", kind}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	c := program.Command{Name: "mount", Args: slices.Concat(args, []string{"--", source, dir}), Time: mountTime}
	_, err := c.Run(ctx)
	if failed := (*program.Failure)(nil); errors.As(err, &failed) {
		// upstream's words
		return fmt.Errorf("mount failed: %w\nMounting command: mount\nMounting arguments: %s\nOutput: %s", failed.Err,
			strings.Join(append(args, source, dir), " "), failed.Said())
	}
	return err
}

// Unmount detaches what is mounted at dir.
func (System) Unmount(dir string) error {
	err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EBUSY) {
		err = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil // not mounted
	}
	return os.NewSyscallError("umount", err)
}

// Bind also mounts source at target.
func (System) Bind(source, target string) error {
	return os.NewSyscallError("mount", unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""))
}

// IsMountPoint queries the kernel. If the kernel is too old to report it, a directory on another device than its parent is a mount point.
func (System) IsMountPoint(dir string) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &stat)
	if err == nil && stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return otherDevice(dir)
}

// otherDevice reports whether a directory is on another device than its parent.
func otherDevice(dir string) (bool, error) {
	var own, parent syscall.Stat_t
	if err := syscall.Lstat(dir, &own); err != nil {
		return false, os.NewSyscallError("lstat", err)
	}
	if err := syscall.Lstat(filepath.Dir(dir), &parent); err != nil {
		return false, os.NewSyscallError("lstat", err)
	}
	return own.Dev != parent.Dev, nil
}

// Below implements Mounter by the kernel's list of mounts.
func (System) Below(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return below(string(text), dir), nil
}

// below returns the mount points below a directory from the text of mountinfo. The fifth word of a line is the mount point, with octal
// escapes for spaces and the like.
func below(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var out []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if path := unescape.Replace(fields[4]); strings.HasPrefix(path, dir+"/") {
			out = append(out, path)
		}
	}
	return out
}
