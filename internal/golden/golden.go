// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package golden compares what a test made with a file that is committed. `go test PACKAGE -update` writes the files of a package anew.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what the tests compare with anew")

// Update reports whether the test is to write its file in place of a comparison.
func Update() bool { return *update }

// Compare fails the test if the file holds anything but got.
func Compare(t testing.TB, file, got string) {
	t.Helper()
	if Update() {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -update writes it anew):\n%s", file, diff)
	}
}
