// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRemoveAll(t *testing.T) {
	home := t.TempDir()
	precious := filepath.Join(home, "precious")
	tree := filepath.Join(home, "tree")
	if err := errors.Join(
		os.WriteFile(precious, []byte("p"), 0o600),
		os.MkdirAll(filepath.Join(tree, "a/b/c"), 0o755),
		os.MkdirAll(filepath.Join(tree, "..raised-1"), 0o755),
		os.MkdirAll(filepath.Join(tree, "shut/in"), 0o755),
		os.Chmod(filepath.Join(tree, "shut"), 0),
		unix.Mkfifo(filepath.Join(tree, "a/fifo"), 0o600),
		os.Symlink(home, filepath.Join(tree, "a/b/up")),
		os.Symlink(precious, filepath.Join(tree, "a/file")),
		os.Symlink(home, filepath.Join(home, "link")),
	); err != nil {
		t.Fatal(err)
	}
	for i := range 2*batch + 1 {
		if err := os.WriteFile(filepath.Join(tree, "a/b/c", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tree", "tree", "link", "none/at/all"} {
		if err := RemoveAll(filepath.Join(home, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) != 1 || entries[0].Name() != "precious" {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// nest makes directories of one name within each other, deeper than a path can say.
func nest(t *testing.T, dir string, depth int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for i := 0; i < depth && err == nil; i++ {
		var inner int
		if err = unix.Mkdirat(fd, "..raised-1", 0o755); err == nil {
			inner, err = unix.Openat(fd, "..raised-1", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			unix.Close(fd)
			fd = inner
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// A container can nest directories deeper than the agent has files to open.
func TestRemoveAllOfDeepTrees(t *testing.T) {
	tree := filepath.Join(t.TempDir(), "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	nest(t, tree, 3000)
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	if err := RemoveAll(tree); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(tree); !os.IsNotExist(err) {
		t.Errorf("the tree is still there: %v", err)
	}
}

func TestRemoveAllLeavesMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	// The thread ends with its namespace of mounts, and with what is mounted there.
	runtime.LockOSThread()
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	of, tree := filepath.Join(home, "of"), filepath.Join(home, "tree")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(of, "in"), 0o755),
		os.WriteFile(filepath.Join(of, "in/file"), nil, 0o600),
		os.MkdirAll(filepath.Join(tree, "a/dir"), 0o755),
		os.WriteFile(filepath.Join(tree, "a/file"), nil, 0o600),
		os.WriteFile(filepath.Join(tree, "a/other"), nil, 0o600),
		unix.Mount(of, filepath.Join(tree, "a/dir"), "", unix.MS_BIND, ""),
		unix.Mount(filepath.Join(of, "in/file"), filepath.Join(tree, "a/file"), "", unix.MS_BIND, ""),
	); err != nil {
		t.Fatal(err)
	}
	err := RemoveAll(tree)
	if err == nil {
		t.Error("a tree with mounts was removed")
	}
	for _, path := range []string{"of/in/file", "tree/a/dir/in/file", "tree/a/file"} {
		if _, err := os.Stat(filepath.Join(home, path)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(tree, "a/other")); !os.IsNotExist(err) {
		t.Errorf("what is not mounted is left: %v", err)
	}
	if err := errors.Join(unix.Unmount(filepath.Join(tree, "a/dir"), 0), unix.Unmount(filepath.Join(tree, "a/file"), 0),
		RemoveAll(tree)); err != nil {
		t.Error(err)
	}
}
