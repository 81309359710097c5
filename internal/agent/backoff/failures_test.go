// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestFailuresAreLoggedLessAndLess: of an operation that fails each second for three hours a dozen lines are logged, each with the number
// of failures so far; after a success the series begins again.
func TestFailuresAreLoggedLessAndLess(t *testing.T) {
	var f Failures
	var lines []string
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for now := begin; now.Before(begin.Add(3 * time.Hour)); now = now.Add(time.Second) {
		f.Log(now, func(message string, args ...any) {
			lines = append(lines, fmt.Sprint(now.Sub(begin), " ", message, " ", args))
		}, "Could not do it", "err", "no")
	}
	want := []string{
		"0s Could not do it [err no]", "1m0s Could not do it [err no failures 61]", "3m0s Could not do it [err no failures 181]",
		"7m0s Could not do it [err no failures 421]", "15m0s Could not do it [err no failures 901]",
		"31m0s Could not do it [err no failures 1861]", "1h3m0s Could not do it [err no failures 3781]",
		"2h3m0s Could not do it [err no failures 7381]",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("logged %q", lines)
	}
	f.Clear()
	lines = nil
	for range 2 {
		f.Log(begin, func(_ string, args ...any) { lines = append(lines, fmt.Sprint(args)) }, "Could not do it")
	}
	if !slices.Equal(lines, []string{"[]"}) {
		t.Errorf("after a success: %q", lines)
	}
}

// TestLogLeavesTheArgumentsAlone: the number of failures is not written into the caller's slice.
func TestLogLeavesTheArgumentsAlone(t *testing.T) {
	var f Failures
	args := append(make([]any, 0, 8), "err", "no")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range 2 {
		f.Log(now, func(string, ...any) {}, "m", args...)
		now = now.Add(time.Hour)
	}
	if rest := args[:4]; rest[2] != nil || rest[3] != nil {
		t.Errorf("the caller has %v", rest)
	}
}

func TestFailuresWaitLongerAndLonger(t *testing.T) {
	var f Failures
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if left := f.Left(now); left != 0 {
		t.Errorf("before a failure: %v", left)
	}
	for _, want := range []time.Duration{2, 4, 8, 10, 10} {
		want *= time.Second
		if got := f.Wait(now, 2*time.Second, 10*time.Second); got != want {
			t.Errorf("waits %v, want %v", got, want)
		}
		if left := f.Left(now.Add(time.Second)); left != want-time.Second {
			t.Errorf("left after a second: %v, want %v", left, want-time.Second)
		}
		now = now.Add(want)
		if left := f.Left(now); left != 0 {
			t.Errorf("left at the end: %v", left)
		}
		if left := f.Left(now.Add(time.Minute)); left != 0 {
			t.Errorf("left after the end: %v", left)
		}
	}
	f.Wait(now, 2*time.Second, time.Minute)
	f.Release()
	if left := f.Left(now); left != 0 {
		t.Errorf("left when released: %v", left)
	}
	if got := f.Wait(now, 2*time.Second, time.Minute); got != 40*time.Second {
		t.Errorf("the wait after one that was released: %v", got)
	}
	f.Clear()
	if left, got := f.Left(now), f.Wait(now, 2*time.Second, time.Minute); left != 0 || got != 2*time.Second {
		t.Errorf("after a success: left %v, waits %v", left, got)
	}
}
