// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"runtime"
	"testing"
	"time"
)

func TestMemoryIsGivenBackWhenQuiet(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	freed, ended := make(chan struct{}, 8), make(chan struct{})
	go func() {
		defer close(ended)
		whenQuiet(ctx, time.Millisecond, 0, func() { freed <- struct{}{} })
	}()
	for range 2 { // a burst, and one later
		limit := time.NewTimer(time.Minute)
		for done := false; !done; {
			runtime.GC() // which takes time itself
			select {
			case <-freed:
				done = true
			case <-limit.C:
				t.Fatal("memory was not given back after a collection")
			default:
			}
		}
	}
	cancel()
	<-ended
}

// TestLittleIsGivenBackOnce has nothing that is worth giving back: what coming up needed goes all the same.
func TestLittleIsGivenBackOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	freed := 0
	whenQuiet(ctx, time.Millisecond, 1<<60, func() {
		freed++
		runtime.GC()
	})
	if freed != 1 {
		t.Errorf("memory was given back %d times", freed)
	}
}
