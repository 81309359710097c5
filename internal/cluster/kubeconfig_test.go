// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKubeconfigIsForItsOwnerAlone writes the administrator's kubeconfig where none is, and over one that others could read or that is a
// link: nobody but its owner can read it, nor through what was opened before, nor does a link lead it elsewhere.
func TestKubeconfigIsForItsOwnerAlone(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Config\n"
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "elsewhere")
	for name, before := range map[string]func(path string) error{
		"new":      func(string) error { return nil },
		"readable": func(path string) error { return os.WriteFile(path, []byte("old"), 0o644) },
		"writable": func(path string) error {
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				return err
			}
			return os.Chmod(path, 0o666)
		},
		"link": func(path string) error {
			if err := os.WriteFile(elsewhere, []byte("other"), 0o644); err != nil {
				return err
			}
			return os.Symlink(elsewhere, path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			if err := before(path); err != nil {
				t.Fatal(err)
			}
			opened, _ := os.Open(path) // by whoever could: nil of one that is new
			if err := writeKubeconfig(path, []byte(secret)); err != nil {
				t.Fatal(err)
			}
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
				t.Errorf("its mode is %s", info.Mode())
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != secret {
				t.Errorf("it holds %q, %v", got, err)
			}
			if opened == nil {
				return
			}
			defer opened.Close()
			was := make([]byte, 64)
			if n, _ := opened.ReadAt(was, 0); string(was[:n]) == secret {
				t.Error("who had the old file open reads the new one")
			}
		})
	}
	if got, err := os.ReadFile(elsewhere); err != nil || string(got) != "other" {
		t.Errorf("the file that a link led to holds %q, %v", got, err)
	}
}
