// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"testing"
	"time"
)

func TestBooted(t *testing.T) {
	for stat, want := range map[string]time.Time{
		"cpu 1\nctxt 5\nbtime 1700000000\nprocesses 3\n": time.Unix(1700000000, 0), "btime x\n": {}, "": {},
	} {
		if got := booted(stat); !got.Equal(want) {
			t.Errorf("%q: %v", stat, got)
		}
	}
}
