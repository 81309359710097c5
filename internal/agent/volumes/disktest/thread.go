// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package disktest supports tests of the agent's file systems: it runs functions with their own mounts, capabilities and file descriptors,
// and inspects volumes and the host.
package disktest

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/sys/unix"
)

// OnThread runs f on its own thread, with its own mounts and capabilities. The thread ends with f.
func OnThread(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	done := make(chan error)
	go onOwnThread(func() error {
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			return err
		}
		return f()
	}, done)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Drop drops capabilities of the thread, within OnThread.
func Drop(capabilities ...uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for _, c := range capabilities {
		data[c/32].Effective &^= 1 << (c % 32)
	}
	return unix.Capset(&header, &data[0])
}

// OnReadOnly runs f with a directory that is mounted read-only. The function make fills it before.
func OnReadOnly(t *testing.T, make, f func(dir string) error) {
	t.Helper()
	dir := t.TempDir()
	OnThread(t, func() error {
		if err := errors.Join(
			unix.Mount("tmpfs", dir, "tmpfs", 0, ""), make(dir), unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		); err != nil {
			return err
		}
		return f(dir)
	})
}

// LeftOpen returns the number of files that f leaves open. Finalizers, which close files much later, do not run.
func LeftOpen(t *testing.T, f func()) int {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	f() // in the first call, the runtime opens files of its own
	count := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	before := count()
	f()
	return count() - before
}

// FewFiles calls f repeatedly: first no file can be opened, then one, and so on, until f succeeds.
func FewFiles(t *testing.T, f func(files uint64) error) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	set := func(to uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: to, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	defer set(was.Cur)
	next, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	for files := range uint64(64) {
		set(uint64(next.Fd()) + 1 + files)
		err := f(files)
		set(was.Cur)
		if err == nil {
			if files == 0 {
				t.Error("it opens no files")
			}
			return
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Error(fmt.Errorf("with %d files: %w", files, err))
		}
	}
	t.Error("it opens more than 64 files")
}
