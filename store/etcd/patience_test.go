// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"
	"time"
)

// TestPatience begins watches that take ten seconds until they deliver something: one of them gets the time. A watch that delivers is not
// given up, however long readers wait, and one that stops delivering is after two seconds.
func TestPatience(t *testing.T) {
	var p patience
	now := time.Unix(1000, 0)
	since := now
	const step = 100 * time.Millisecond
	given := 0
	for began := now; now.Sub(began) < 10*time.Second; now = now.Add(step) {
		if began == now {
			p.begun(now)
		}
		if p.over(now, since) {
			if given++; given > 5 {
				t.Fatal("no watch gets ten seconds")
			}
			began = now.Add(step)
		}
	}
	if given != 3 { // after 2, 4 and 8 seconds
		t.Errorf("%d watches were given up, want 3", given)
	}
	for range 100 {
		p.heard(now)
		now = now.Add(stallTime)
		if p.over(now, since) {
			t.Fatal("a watch that delivers is given up")
		}
	}
	if now = now.Add(step); !p.over(now, since) {
		t.Error("a watch that has delivered is not given up two seconds later")
	}
	for range 20 {
		p.begun(now)
		if now = now.Add(stallMost + step); !p.over(now, since) {
			t.Fatal("a watch gets more than the most")
		}
	}
}
