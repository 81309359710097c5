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

// System mounts with the kernel's calls.
type System struct{}

var _ Mounter = System{}

// Tmpfs mounts memory at dir, of the size or of half the machine's for size zero.
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

// mountTime is the most that mount(8) may take. A server that does not answer is asked for two minutes by mount.nfs.
const mountTime = 10 * time.Minute

// Mount runs mount(8), which knows the helpers of file systems. It ends with ctx. The source and the directory are no options, whatever
// they begin with, and the agent's environment stays with the agent.
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

// Bind mounts source at target too.
func (System) Bind(source, target string) error {
	return os.NewSyscallError("mount", unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""))
}

// IsMountPoint asks the kernel; where it is too old to say, another device than the
// parent's means a mount.
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

// otherDevice says whether a directory is on another device than its parent.
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

// Below reads the kernel's list.
func (System) Below(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read mounts: %w", err)
	}
	return below(string(text), dir), nil
}

// below picks the mount points under a directory from the text of mountinfo, where the fifth
// word of a line is the mount point, with spaces and the like as octal escapes.
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
