// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"

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
