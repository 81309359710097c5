// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRefusals wants one clear line, exit code 1, and nothing changed, of each start that cannot be.
func TestRefusals(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(t.TempDir(), "used")
	up(t, used, "--node", "none", "--controllers", "none")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := func(name, file, text string) string {
		d := filepath.Join(t.TempDir(), name)
		if file != "" {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(d, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	for _, c := range []struct {
		name, dir string
		args      []string
		want      string
	}{
		{"directory in use", used, nil, "is in use by another process"},
		{"port taken", dir("port", "", ""), []string{"--listen", taken.Addr().String()}, "the port is taken by another process"},
		{"unknown format", dir("future", "format", "mortise 99\n"), nil, `has format "mortise 99", which this release does not know`},
		{"foreign directory", dir("foreign", "thesis.txt", "precious"), nil, "is not empty and not one of Mortise's"},
		{"unknown controller", dir("controller", "", ""), []string{"--controllers", "*,-nosuch"}, `unknown "nosuch"`},
		{"no runtime", dir("runtime", "", ""), []string{"--node", "cri", "--cri-socket", filepath.Join(t.TempDir(), "none.sock")}, "node cri: "},
		{"overlapping ranges", dir("ranges", "", ""), []string{"--pod-cidr", "10.96.0.0/12"}, "overlap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := files(t, c.dir)
			out, err := exec.Command(path, append([]string{"up", "--data-dir", c.dir, "--listen", "127.0.0.1:0"}, c.args...)...).CombinedOutput()
			exit, ok := err.(*exec.ExitError)
			if !ok || exit.ExitCode() != 1 {
				t.Errorf("ended with %v, want exit code 1", err)
			}
			said, advice, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
			if !strings.HasPrefix(said, "mortise: ") || !strings.Contains(said, c.want) {
				t.Errorf("said %q, want %q in the first line", said, c.want)
			}
			if text, ok := strings.CutPrefix(advice, "mortise: what to do: "); !ok || text == "" || strings.Contains(text, "\n") {
				t.Errorf("said %q below that, want one line of what to do", advice)
			}
			if after := files(t, c.dir); after != before {
				t.Errorf("the directory held %q, holds %q", before, after)
			}
		})
	}
}

// files lists what a directory holds; empty if it does not exist.
func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
