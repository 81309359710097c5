// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// names are the files of a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func holds(t *testing.T, path, want string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
		t.Errorf("%s: %v, %v; want mode %v", path, info, err, mode)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.conf")
	defer syscall.Umask(syscall.Umask(0o077))
	for _, c := range []struct {
		text string
		mode fs.FileMode
	}{{"one", 0o600}, {"two, longer", 0o644}, {"", 0o600}} {
		if err := Write(path, c.mode, []byte(c.text)); err != nil {
			t.Fatal(err)
		}
		holds(t, path, c.text, c.mode)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
}

// TestWriteReplacesTheName leaves readers of the old file with the old text, and does not follow a link.
func TestWriteReplacesTheName(t *testing.T) {
	dir := t.TempDir()
	other, path := filepath.Join(dir, "other"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(other, []byte("old"), 0o600), os.Symlink(other, path)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := Write(path, 0o600, []byte("new")); err != nil {
		t.Fatal(err)
	}
	holds(t, path, "new", 0o600)
	holds(t, other, "old", 0o600)
	if got, err := io.ReadAll(reader); string(got) != "old" || err != nil {
		t.Errorf("who reads the old file got %q, %v", got, err)
	}
}

func TestStreamThatFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := Write(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("full")
	err := Stream(path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) || !strings.Contains(err.Error(), "replace "+path+": ") {
		t.Errorf("%v", err)
	}
	holds(t, path, "old", 0o600)
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left: %q", got)
	}
}

func TestWriteWhereItCannotBe(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none/a"), dir} {
		if err := Write(path, 0o600, nil); err == nil || !strings.Contains(err.Error(), "replace "+path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %q", got)
	}
}

// TestWriteHere takes a name without a directory.
func TestWriteHere(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := Write("a", 0o600, []byte("x")); err != nil {
		t.Fatal(err)
	}
	holds(t, "a", "x", 0o600)
}
