// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	aloneTest    = "MORTISE_TEST_ALONE"  // "init", then "test", in the processes of a test that is alone
	builtProgram = "MORTISE_TEST_BINARY" // the binary that such a test runs
)

// ownDirs are the places where a node, its runtime and its network keep what is the machine's.
func ownDirs() []string { return []string{"/run", "/etc/cni", "/var/lib/cni", "/var/log/pods"} }

// alone runs the test that calls it again, in a process whose network, mounts and process numbers are its own: it shares none with
// the machine or with other tests, it can count what a node leaves there, and whatever it leaves ends with it. In that process alone
// returns true; in the other it returns false when all is over, and the caller has nothing more to do. Without root the test says
// what it leaves out.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(aloneTest) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a node with real containers, in namespaces of its own, needs root")
	}
	if testing.Short() {
		t.Skip("-short: containers are left to the full run")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range ownDirs() {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			t.Cleanup(func() { _ = os.Remove(dir) }) // but for what others have put there since
		case !errors.Is(err, fs.ErrExist):
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=9m")
	c.Env = append(os.Environ(), aloneTest+"=init", builtProgram+"="+path)
	c.Stdout, c.Stderr = t.Output(), t.Output()
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	// The death that is signalled is the thread's.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.Run(); err != nil {
		t.Errorf("the test in namespaces of its own: %v", err)
	}
	return false
}

// runInit is the first process of the namespaces: it makes them a place to live in, starts the test, and takes in orphans until the
// test ends. All other processes end with it.
func runInit() int {
	if err := arrangeMounts(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), aloneTest+"=test")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
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
			fmt.Fprintln(os.Stderr, "wait for the test:", err)
			return 1
		case pid == c.Process.Pid && status.Exited():
			return status.ExitStatus()
		case pid == c.Process.Pid:
			fmt.Fprintln(os.Stderr, "the test was ended by signal", status.Signal())
			return 1
		}
	}
}

func arrangeMounts() error {
	// Nothing goes out, and what is mounted here is seen by containers that ask for it.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("change the propagation of mounts: %w", err)
		}
	}
	// What other tests and nodes have mounted is theirs: here it would only be in the way of its end.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 4 && (strings.HasPrefix(f[4], os.TempDir()+"/") || strings.HasPrefix(f[4], "/run/")) {
			_ = unix.Unmount(f[4], unix.MNT_DETACH) // it may have ended meanwhile
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range ownDirs() {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}
