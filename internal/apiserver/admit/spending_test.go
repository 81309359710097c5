// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"slices"
	"testing"
	"time"
)

// TestSpending plays the worked example: the time of concurrent calls counts once for the request and in full for each
// extension.
func TestSpending(t *testing.T) {
	var s Spending
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	begin := func(ms, want int) {
		t.Helper()
		if got := s.Begin(at(ms)); got != time.Duration(want)*time.Millisecond {
			t.Errorf("after %d ms, %v were spent, want %d ms", ms, got, want)
		}
	}
	begin(0, 0)
	s.End("a", at(0), at(300))
	begin(400, 300) // no call for 100 ms
	begin(400, 300)
	s.End("b", at(400), at(500))
	s.End("a", at(400), at(900))
	begin(1000, 800)
	s.End("b", at(1000), at(1000))
	took := s.Took()
	if want := []Spent{{"a", 800 * time.Millisecond}, {"b", 100 * time.Millisecond}}; !slices.Equal(took, want) {
		t.Errorf("they took %v, want %v", took, want)
	}
	took[0].Took = 0
	if got := s.Took()[0].Took; got != 800*time.Millisecond {
		t.Errorf("the list is shared: %v", got)
	}
}

// TestSpendingOf checks that the request's spending is returned, or an empty one.
func TestSpendingOf(t *testing.T) {
	var s Spending
	if got := SpendingOf(WithSpending(t.Context(), &s)); got != &s {
		t.Errorf("the request's is %p, want %p", got, &s)
	}
	if got := SpendingOf(t.Context()); got == nil || got.Begin(time.Unix(1, 0)) != 0 {
		t.Errorf("without a request: %+v", got)
	}
}
