// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// TestAwaitStopped: a definition goes while the first lists are made. The collector does not wait for the list of its objects.
func TestAwaitStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, stop := context.WithCancel(t.Context())
		synced := make(chan struct{})
		close(synced)
		m := &monitors{clock: clock.RealClock{}, log: slog.New(slog.DiscardHandler), running: map[schema.GroupVersionResource]*monitor{
			{Version: "v1", Resource: "pods"}:                            {stop: func() {}, synced: synced},
			{Group: "gc.example.com", Version: "v1", Resource: "crates"}: {stop: stop, synced: make(chan struct{}), stopped: gone.Done()},
		}}
		begun, awaited := m.clock.Now(), make(chan struct{})
		go func() {
			defer close(awaited)
			m.await(t.Context())
		}()
		synctest.Wait()
		select {
		case <-awaited:
			t.Error("the collector does not wait for the first lists")
		default:
		}
		stop()
		<-awaited
		if took := m.clock.Since(begun); took != 0 {
			t.Errorf("the collector waited %s", took)
		}
	})
}

// TestSettle: the server of a new group does not answer yet. That is a warning only once it has lasted, and its end is told then.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		m := &monitors{clock: clock.RealClock{}, failing: map[string]failing{}, log: slog.New(slog.NewTextHandler(&out, nil))}
		unavailable := fmt.Errorf("%w: %w", errUndiscovered, errors.New("unavailable"))
		lines := func(of string) int {
			defer out.Reset()
			return strings.Count(out.String(), of)
		}
		begun, tries := m.clock.Now(), 0
		for m.clock.Since(begun) < 5*time.Minute {
			pause, err := m.settle(t.Context(), "g.example.com", unavailable)
			if err != nil || pause < shortestPause || pause > longestPause {
				t.Fatalf("a group is discovered again after %s, %v", pause, err)
			}
			warned, lasted := lines("level=WARN"), m.clock.Since(begun)
			if want := lasted >= patience; want != (warned == 1) {
				t.Errorf("%d warnings after %s", warned, lasted)
			}
			tries++
			time.Sleep(pause)
		}
		if tries < 15 || tries > 20 {
			t.Errorf("a group is discovered %d times in five minutes", tries)
		}
		if pause, err := m.settle(t.Context(), "g.example.com", nil); pause != 0 || err != nil || lines("level=INFO") != 1 {
			t.Errorf("after the failure: again in %s, %v", pause, err)
		}
		if _, err := m.settle(t.Context(), "g.example.com", unavailable); err != nil || lines("level") != 0 {
			t.Errorf("the next failure is one that has lasted: %v", err)
		}
		if pause, err := m.settle(t.Context(), "g.example.com", nil); pause != 0 || err != nil || lines("level") != 0 {
			t.Error("the end of a failure that did not last is told")
		}
		broken := errors.New("broken")
		if pause, err := m.settle(t.Context(), everything, broken); pause != 0 || !errors.Is(err, broken) {
			t.Errorf("another failure: again in %s, %v", pause, err)
		}
	})
}
