// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/golden"
)

// TestFindings checks each archive of testdata: the definition in new.yaml, compared with the one in old.yaml if there
// is one. found.txt has the findings; -update writes it.
func TestFindings(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string]*txtar.File{}
			for i := range a.Files {
				parts[a.Files[i].Name] = &a.Files[i]
			}
			var lines strings.Builder
			defs, err := Read(strings.NewReader(string(parts["new.yaml"].Data)))
			if err != nil {
				fmt.Fprintln(&lines, err)
			}
			for _, d := range defs {
				for _, f := range Check(t.Context(), d) {
					fmt.Fprintln(&lines, f)
				}
			}
			if old := parts["old.yaml"]; old != nil {
				olds, err := Read(strings.NewReader(string(old.Data)))
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range Compare(t.Context(), olds[0], defs[0]) {
					fmt.Fprintln(&lines, f)
				}
			}
			if diff := cmp.Diff(string(parts["found.txt"].Data), lines.String()); diff != "" {
				if !golden.Update() {
					t.Fatal(diff)
				}
				parts["found.txt"].Data = []byte(lines.String())
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defs, err := Read(strings.NewReader(string(data)))
		if err != nil && err.Error() == "" {
			t.Error("an error without words")
		}
		for _, d := range defs {
			Check(t.Context(), d)
		}
	})
}
