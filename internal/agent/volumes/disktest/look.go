// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disktest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Read returns what users of the volume see: names without the internal ones.
func Read(t interface{ Fatal(...any) }, dir string) map[string]string {
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		err := filepath.Walk(filepath.Join(dir, e.Name())+"/", func(p string, info os.FileInfo, err error) error {
			if err != nil || info.IsDir() {
				return nil
			}
			text, err := os.ReadFile(p)
			name, _ := filepath.Rel(dir, p)
			out[name] = string(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
			out[e.Name()] = string(text)
		}
	}
	return out
}

// HostDir makes a directory of the host that no volume may change, and returns a check of that.
func HostDir(t *testing.T) (string, func()) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "precious"), []byte("p"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != "precious" {
			t.Errorf("the host's directory holds %v, %v", entries, err)
		}
	}
}
