// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, made uint64
		took       time.Duration
		want       int
	}{
		{60 * mb, 60 * mb, time.Second, 400},
		{60 * mb, 60 * mb, time.Minute, 100},     // hardly anything is made
		{60 * mb, 600 * mb, time.Second, 400},    // 300 MB together and no more
		{1000 * mb, 1000 * mb, time.Second, 100}, // much lives: as much waits by itself
		{200 * mb, 2000 * mb, time.Second, 100},
		{10 * mb, 10 * mb, 100 * time.Millisecond, 2900},
		{0, 1, time.Second, 100},
		{1, 1, 0, 100},
	} {
		if got := percent(c.live, c.made, c.took); got != c.want {
			t.Errorf("%d MB live, %d MB made in %v: %d, want %d", c.live/mb, c.made/mb, c.took, got, c.want)
		}
	}
}
