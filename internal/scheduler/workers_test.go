// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestWorkers: tasks run beside one another, on goroutines that are used again, and workers end when there is nothing to do for a while,
// or nothing to come.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := newWorkers()
		var on sync.Map // goroutines that did tasks
		worker := func() {
			var b [32]byte
			n := runtime.Stack(b[:], false)
			on.Store(string(bytes.Fields(b[:n])[1]), true)
		}
		meet, all := make(chan struct{}), make(chan struct{})
		for range 8 { // none of which ends before the last began
			w.Go(ctx, func() { worker(); meet <- struct{}{}; <-all })
		}
		for range 8 {
			<-meet
		}
		close(all)
		synctest.Wait()
		did := 0
		for range 100 {
			w.Go(ctx, func() { worker(); did++ })
			synctest.Wait()
		}
		workers := 0
		on.Range(func(any, any) bool { workers++; return true })
		if did != 100 || workers != 8 {
			t.Errorf("%d of 100 tasks were done, by %d workers", did, workers)
		}
		began := time.Now()
		w.Wait()
		if took := time.Since(began); took != restless {
			t.Errorf("workers ended after %v with nothing to do, want %v", took, restless)
		}
		w.Go(ctx, func() {})
		synctest.Wait()
		cancel()
		began = time.Now()
		w.Wait()
		w.Go(ctx, func() { did++ })
		w.Wait()
		if took := time.Since(began); took != 0 || did != 101 {
			t.Errorf("after the end workers stayed for %v, and a task was done %d times", took, did-100)
		}
	})
}
