// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/machine/unshare"
)

const (
	aloneTest    = "MORTISE_TEST_ALONE"  // "init", then "test", in the processes of a test that is alone
	builtProgram = "MORTISE_TEST_BINARY" // the binary that such a test runs
)

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
	remove, err := unshare.Make()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
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
	if err := unshare.Arrange(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), aloneTest+"=test")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return unshare.Init(c)
}
