// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package safepath

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// fill fills a directory with a file of each type, and links to each.
func fill(t *testing.T) string {
	dir := t.TempDir()
	if err := errors.Join(
		os.Mkdir(filepath.Join(dir, "dir"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644),
		os.WriteFile(filepath.Join(dir, "dir/file"), []byte("inner"), 0o644),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644),
		os.Symlink("file", filepath.Join(dir, "link")),
		os.Symlink("fifo", filepath.Join(dir, "to-fifo")),
		os.Symlink("../..", filepath.Join(dir, "dir/up")),
		os.Symlink("/etc", filepath.Join(dir, "out")),
		os.Symlink("/proc/self/fd/0", filepath.Join(dir, "magic")),
	); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpenRegular(t *testing.T) {
	dir := fill(t)
	for name, ok := range map[string]bool{"file": true, "dir/file": true, "dir": false, "fifo": false, "link": false, "to-fifo": false,
		"out": false} {
		f, err := OpenRegular(filepath.Join(dir, name))
		if err == nil {
			f.Close()
		}
		if (err == nil) != ok || err != nil && !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenRegular(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := OpenRegular("/dev/null"); !errors.Is(err, ErrNotRegular) {
		t.Errorf("a device: %v", err)
	}
}

// A write lease makes other opens wait for its holder.
func TestOpenRegularDoesNotWaitForLeases(t *testing.T) {
	path := filepath.Join(fill(t), "file")
	holder, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	if _, err := unix.FcntlInt(holder.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRegular(path); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("error %v", err)
	}
}

func TestReadRegularReadsNoMoreThanItsLimit(t *testing.T) {
	path := filepath.Join(fill(t), "file")
	if err := os.Truncate(path, 1<<36); err != nil {
		t.Fatal(err)
	}
	text, err := ReadRegular(path, 6)
	if err != nil || string(text) != "text\x00\x00" {
		t.Errorf("read %q, %v", text, err)
	}
}

func TestFind(t *testing.T) {
	dir := fill(t)
	for name, want := range map[string]string{
		"file": "file", "dir": "dir", "fifo": "fifo", "link": "file", "to-fifo": "fifo", "dir/file": "dir/file",
		"out": "", "out/passwd": "", "dir/up": "", "../x": "", "magic": "",
	} {
		f, err := Find(dir, name)
		if (err == nil) != (want != "") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		got, err := f.Stat()
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(filepath.Join(dir, want)); err != nil || !os.SameFile(got, info) {
			t.Errorf("%s: found another file, %v", name, err)
		}
	}
}
