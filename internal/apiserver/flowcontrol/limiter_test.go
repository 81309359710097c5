// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"testing"
	"time"
)

func TestBoundsAndPeaks(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	l := &Limiter{MaxReads: 2, MaxWrites: 1}
	enter := func(method string, exempt, want bool) {
		t.Helper()
		if got := l.Enter(method, exempt, now); got != want {
			t.Errorf("%s, exempt %v: let in %v", method, exempt, got)
		}
	}
	peaks := func(reads, writes int64) {
		t.Helper()
		if r, w := l.Peaks(now); r != reads || w != writes {
			t.Errorf("peaks %d, %d, want %d, %d", r, w, reads, writes)
		}
	}
	enter("GET", false, true)
	enter("HEAD", false, true)
	enter("GET", false, false)
	enter("GET", true, true) // administrators
	enter("POST", false, true)
	enter("DELETE", false, false)
	peaks(3, 1)
	l.Leave("GET")
	l.Leave("GET")
	l.Leave("POST")
	peaks(3, 1)
	now = now.Add(time.Second)
	peaks(3, 1)
	now = now.Add(time.Second)
	peaks(1, 0)
	enter("PUT", false, true)
	peaks(1, 1)
}
