// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"testing"
	"time"
)

func TestWaitsDouble(t *testing.T) {
	table := New(Max)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if until, wait := table.Until("k", now); wait != 0 || !until.IsZero() {
		t.Errorf("a key that never failed waits %v", wait)
	}
	for _, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second,
		300 * time.Second, 300 * time.Second} {
		table.Next("k", now)
		until, wait := table.Until("k", now)
		if wait != want || !until.Equal(now.Add(want)) {
			t.Errorf("wait %v until %v, want %v", wait, until, want)
		}
		now = until
	}
	later := now.Add(2*Max + time.Second)
	if _, wait := table.Until("k", later); wait != 0 {
		t.Errorf("after a long good life it waits %v", wait)
	}
	table.Next("k", later)
	if _, wait := table.Until("k", later); wait != Initial {
		t.Errorf("begins again with %v", wait)
	}
	table.Forget(func(key string) bool { return key == "k" })
	if _, wait := table.Until("k", later); wait != 0 {
		t.Errorf("forgotten, but waits %v", wait)
	}
}
