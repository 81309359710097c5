// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rootlinks

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A node with a directory of its own is found at the usual paths, until it ends. What others have there stays.
func TestLinks(t *testing.T) {
	usual, root := filepath.Join(t.TempDir(), "kubelet"), t.TempDir()
	if err := os.MkdirAll(filepath.Join(usual, "plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nowhere", filepath.Join(usual, "pods")); err != nil { // of a node that was killed
		t.Fatal(err)
	}
	var said bytes.Buffer
	remove, err := Make(usual, root, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if err := os.WriteFile(filepath.Join(usual, name, "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
		_, err := os.Stat(filepath.Join(root, name, "file"))
		if there := err == nil; there != (name != "plugins") {
			t.Errorf("%s leads to the node: %v", name, there)
		}
	}
	if text := said.String(); !strings.Contains(text, "is not a link") || !strings.Contains(text, "Linked kubelet's usual paths") {
		t.Errorf("said %s", text)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(usual); err != nil || len(entries) != 1 || entries[0].Name() != "plugins" {
		t.Errorf("left %v, %v", entries, err)
	}
}

// A second node on the machine leaves the links of one that runs, and has them when that one has ended. The usual directory goes with the
// last links if nothing else is in it.
func TestOtherNode(t *testing.T) {
	usual, first, second := filepath.Join(t.TempDir(), "kubelet"), t.TempDir(), t.TempDir()
	log := slog.New(slog.DiscardHandler)
	removeFirst, err := Make(usual, first, log)
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	removeSecond, err := Make(usual, second, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil || !strings.Contains(said.String(), "Another node has its links") {
		t.Fatalf("%v, said %s", err, &said)
	}
	leadsTo := func(root string) {
		t.Helper()
		if to, err := os.Readlink(filepath.Join(usual, "pods")); err != nil || to != filepath.Join(root, "pods") {
			t.Errorf("the link leads to %s, %v; want %s", to, err, root)
		}
	}
	leadsTo(first)
	if err := removeSecond(); err != nil {
		t.Error(err)
	}
	leadsTo(first)
	if err := removeFirst(); err != nil {
		t.Error(err)
	}
	remove, err := Make(usual, second, log)
	if err != nil {
		t.Fatal(err)
	}
	leadsTo(second)
	if err := remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(usual); !os.IsNotExist(err) {
		t.Errorf("left the directory: %v", err)
	}
}

// A node whose directory is the usual one needs no links, and leaves none; neither does one that is to make none.
func TestNoLinks(t *testing.T) {
	root := t.TempDir()
	for _, usual := range []string{root, ""} {
		remove, err := Make(usual, root, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
		for _, name := range Names() {
			if info, err := os.Lstat(filepath.Join(root, name)); err != nil || !info.IsDir() {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	}
}
