// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package unshare runs a node as if it were alone on a machine: in a process with its own network, mount and PID namespaces (CLONE_NEWNET,
// CLONE_NEWNS, CLONE_NEWPID; see unshare(1)). Tests and benchmarks count there what a node leaves behind, which ends with the namespaces.
//
// [Dirs] must exist before; in the process, [Arrange] sets up its mounts, and [Init] makes it the init process, which starts the others and
// reaps orphans.
package unshare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Dirs returns the directories in which a node, its runtime and its network keep state on the machine.
func Dirs() []string { return []string{"/run", "/etc/cni", "/var/lib/cni", "/var/log/pods"} }

// Make creates the missing directories. remove deletes them, unless they are not empty.
func Make() (remove func(), err error) {
	var made []string
	remove = func() {
		for _, dir := range made {
			_ = os.Remove(dir) // other processes may use it
		}
	}
	for _, dir := range Dirs() {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			made = append(made, dir)
		case !errors.Is(err, fs.ErrExist):
			remove()
			return nil, err
		}
	}
	return remove, nil
}

// Init starts a program, and reaps orphans until it exits; all other processes of the namespace end with the caller. It returns the
// program's exit code.
func Init(c *exec.Cmd) int {
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "wait for the program:", err)
			return 1
		case pid == c.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == c.Process.Pid:
			fmt.Fprintln(os.Stderr, "the program was ended by signal", status.Signal())
			return 1
		}
	}
}

// Arrange makes the process's mounts private, and the machine's directories empty.
func Arrange() error {
	// Mounts do not propagate to the machine, but do to containers that request it.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("change the propagation of mounts: %w", err)
		}
	}
	// Unmount other programs' mounts: in this namespace they would only delay their end.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 4 && (strings.HasPrefix(f[4], os.TempDir()+"/") || strings.HasPrefix(f[4], "/run/")) {
			_ = unix.Unmount(f[4], unix.MNT_DETACH) // it may be unmounted already
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range Dirs() {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}
