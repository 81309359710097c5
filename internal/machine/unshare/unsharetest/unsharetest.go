// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package unsharetest runs tests in processes that are alone on their machine, as package unshare makes it. [Alone] is for the test, [Init]
// for the TestMain of its package.
package unsharetest

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

// Variable tells a process of a test what it is: "init", then "test". Packages may have further processes of their own with it.
const Variable = "MORTISE_TEST_ALONE"

// Alone runs the test that calls it again, in a process whose network, mounts and process numbers are its own: it shares none with
// the machine or with other tests, it can count what a node leaves there, and whatever it leaves ends with it. In that process Alone
// returns true; in the other it returns false when all is over, and the caller has nothing more to do. Without root the test says
// what it leaves out. env returns what the process has in its environment beside the caller's.
func Alone(t *testing.T, env func() []string) bool {
	t.Helper()
	if os.Getenv(Variable) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a node with real containers, in namespaces of its own, needs root")
	}
	if testing.Short() {
		t.Skip("-short: containers are left to the full run")
	}
	more := env()
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
	c.Env = append(append(os.Environ(), more...), Variable+"=init")
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

// Init is the first process of the namespaces, where Variable is "init": it makes them a place to live in, starts the test, and takes in
// orphans until the test ends. All other processes end with it.
func Init() int {
	if err := unshare.Arrange(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), Variable+"=test")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return unshare.Init(c)
}
