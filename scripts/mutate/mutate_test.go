// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
