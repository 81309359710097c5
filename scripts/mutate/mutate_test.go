// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMutate runs the mutants of a package whose tests miss some: a boundary, a value, a call, and all of a function.
func TestMutate(t *testing.T) {
	var out strings.Builder
	enough, err := mutate(t.Context(), &out, settings{min: 90, verbose: true}, []string{"./testdata/door"})
	if err != nil {
		t.Fatal(err)
	}
	if enough {
		t.Error("the score is said to be enough")
	}
	const room = "github.com/mortise-dev/mortise/scripts/mutate/testdata/door"
	want := strings.ReplaceAll(`door.go:23:2 call dropped: killed by ROOM
door.go:24:2 defer dropped: killed by ROOM
door.go:25:5 if negated: killed by ROOM
door.go:25:5 operand negated: killed by ROOM
door.go:25:19 operand negated: killed by ROOM
door.go:25:19 <= for <: survived
door.go:26:3 nil returned for an error: killed by ROOM
door.go:28:2 call dropped: survived
door.go:29:2 zero value returned: survived
door.go:29:2 error returned for nil: killed by ROOM
door.go:39:6 for negated: survived, not reached
door.go:39:6 >= for >: survived, not reached
door.go:40:3 returned bool negated: survived, not reached
door.go:42:2 returned bool negated: survived, not reached
ROOM: killed 7 of 14 (50.0 %)
`, "ROOM", room)
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// Tests of a package see its files and testdata and the rest of the module, and what they write stays out of the tree.
func TestMirror(t *testing.T) {
	module := t.TempDir()
	for name, text := range map[string]string{"go.mod": "m", "a/x.go": "x", "a/b/y.go": "y", "a/b/testdata/in/z": "z", "a/b/c/w.go": "w",
		"d/v.go": "v"} {
		path := filepath.Join(module, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for folder, names := range map[string]map[string]string{
		"a/b": {"../../go.mod": "m", "../x.go": "x", "y.go": "y", "testdata/in/z": "z", "c/w.go": "w", "../../d/v.go": "v"},
		".":   {"go.mod": "m", "a/b/y.go": "y", "d/v.go": "v"},
	} {
		copied, err := mirror(t.TempDir(), module, filepath.Join(module, folder))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range names {
			if got, err := os.ReadFile(filepath.Join(copied, name)); err != nil || string(got) != want {
				t.Errorf("%s: %s: %q, %v", folder, name, got, err)
			}
		}
		if folder == "." {
			continue
		}
		for _, name := range []string{"new", "testdata/in/new", "../new", "../../new"} {
			if err := os.WriteFile(filepath.Join(copied, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(filepath.Join(module, folder, name)); !os.IsNotExist(err) {
				t.Errorf("%s is written to the tree: %v", name, err)
			}
		}
	}
}
