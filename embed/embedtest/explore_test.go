// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/embed"
)

// seeds is how many seeds a test explores: by the environment, a few otherwise.
func seeds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("MORTISE_SEEDS")); err == nil {
		return n
	}
	return few
}

// TestExplore has the explorer find each planted bug, and none in the controller without one.
func TestExplore(t *testing.T) {
	first := Start(t, &embed.Server{Controllers: []string{"none"}})
	for _, b := range []bug{lostUpdate, missedDelete, blindCreate, ignoredConflict} {
		t.Run(string(b), func(t *testing.T) {
			began := time.Now()
			x := explore(t, first, 1000, b.story)
			if x == nil {
				t.Fatal("1,000 seeds do not find it")
			}
			t.Logf("after %v\n%s", time.Since(began), x)
		})
	}
	t.Run("none", func(t *testing.T) {
		Explore(t, first, seeds(10), none.story)
	})
}

// TestFaultsAreLiterals: a reported fault can be pasted into a test.
func TestFaultsAreLiterals(t *testing.T) {
	f := Fault{Kind: Gone, At: 2, Resource: "pods", Delay: 1500 * time.Millisecond}
	if got, want := f.String(), `{Kind: embedtest.Gone, At: 2, Resource: "pods", Delay: 1500 * time.Millisecond}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
