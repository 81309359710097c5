// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// What a container leads to by a link, or has mounted, is not in its volume.
func TestTakenStaysBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	// The thread ends with its namespace of mounts, and with what is mounted there.
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	outside := write(t, t.TempDir(), map[string]string{"a": "hello", "b": "hello", "c/d": "hello"})
	dir := write(t, t.TempDir(), map[string]string{"in/file": "hello"})
	bound, memory := filepath.Join(dir, "bound"), filepath.Join(dir, "memory")
	if err := errors.Join(
		os.Symlink(outside, filepath.Join(dir, "link")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Mkdir(bound, 0o755),
		os.Mkdir(memory, 0o755),
		unix.Mount(outside, bound, "", unix.MS_BIND, ""),
		unix.Mount("tmpfs", memory, "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	write(t, memory, map[string]string{"big": "hello", "c/d": "hello"})
	// The directory, in, in/file, link, fifo, and the directory where something of the same device is bound.
	if _, files := Taken(dir); files != 6 {
		t.Errorf("%d files", files)
	}
	if _, files := Taken(filepath.Join(dir, "link")); files != 1 {
		t.Errorf("a link leads to %d files", files)
	}
	if err := errors.Join(unix.Unmount(bound, 0), unix.Unmount(memory, 0)); err != nil {
		t.Error(err)
	}
}
