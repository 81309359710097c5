// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestFileIsPutAside(t *testing.T) {
	dir := t.TempDir()
	c := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC))
	for _, name := range []string{"audit-2026-11-01T10-00-00.000.log", "audit-notes.log", "other-2020-11-01T10-00-00.000.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := OpenFile(FileOptions{Path: filepath.Join(dir, "audit.log"), MaxSize: 10, MaxAge: 10 * 24 * time.Hour, MaxBackups: 2,
		Compress: true, Log: quiet, Clock: c})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, line := range []string{"one\n", "two\n", "three\n", "a line that is too long for any file\n", "five\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		c.SetTime(c.Now().Add(time.Hour))
	}
	if err := f.tidy(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got[e.Name()] = read(t, filepath.Join(dir, e.Name()))
	}
	want := map[string]string{
		"audit.log": "five\n", "audit-notes.log": "", "other-2020-11-01T10-00-00.000.log": "",
		"audit-2026-11-21T13-00-00.000.log.gz": "three\n", "audit-2026-11-21T14-00-00.000.log.gz": "a line that is too long for any file\n",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	in := io.Reader(file)
	if strings.HasSuffix(path, ".gz") {
		if in, err = gzip.NewReader(file); err != nil {
			t.Fatal(err)
		}
	}
	b, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestFileGoesOnWhereItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for _, line := range []string{"one\n", "two\n"} {
		f, err := OpenFile(FileOptions{Path: path, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, path); got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}
