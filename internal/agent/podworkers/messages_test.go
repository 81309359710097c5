// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/containerlog"
)

// A container may leave anything where its termination message or its log is looked for: nothing of the host is read, and nothing blocks.
func TestTerminationMessageFiles(t *testing.T) {
	dir := t.TempDir()
	line := "2026-01-02T03:04:05Z stdout F last words\n"
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "file"), []byte(line), 0o644),
		os.WriteFile(filepath.Join(dir, "huge"), []byte(strings.Repeat("x", maxMessage)), 0o644),
		os.Truncate(filepath.Join(dir, "huge"), 1<<36),
		end(filepath.Join(dir, "huge"), strings.Repeat("y", maxMessage)),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644),
		os.Symlink("file", filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "dir"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"file": line, "huge": strings.Repeat("y", maxMessage), "fifo": "", "link": "", "dir": "", "none": "",
	} {
		if got := messageIn(filepath.Join(dir, name)); got != want {
			t.Errorf("message in %s: %.20q", name, got)
		}
	}
	for name, want := range map[string]string{"file": "last words\n", "fifo": "", "link": "", "dir": "", "none": ""} {
		if got, _ := containerlog.Tail(filepath.Join(dir, name)); got != want {
			t.Errorf("log in %s: %q", name, got)
		}
	}
}

// end appends to a file.
func end(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
