// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// TestWhatIsMeasured: each hint is told of, and what is kept for the pods that are being tried is counted.
func TestWhatIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hints []string
		q := queue.New(map[string]queue.Profile{"s": profile{}},
			queue.Options{Hinted: func(plugin, event string, hint fwk.QueueingHint, _ time.Duration) {
				hints = append(hints, plugin+" "+event+" "+hint.String())
			}})
		defer q.Close()
		inFlight := func(wantPods int, wantEvents map[string]int) {
			t.Helper()
			if pods, events := q.InFlight(); pods != wantPods || !cmp.Equal(events, wantEvents) {
				t.Errorf("%d pods and %v in flight, want %d and %v", pods, events, wantPods, wantEvents)
			}
		}
		q.Add(t.Context(), pod("p", 1))
		inFlight(0, map[string]int{})
		item, err := q.Pop(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inFlight(1, map[string]int{})
		q.MoveOnEvent(t.Context(), node(false))
		q.MoveOnEvent(t.Context(), node(false))
		inFlight(1, map[string]int{"NodeAdd": 2})
		reject(t, q, item)
		inFlight(0, map[string]int{})
		q.MoveOnEvent(t.Context(), node(true))
		want := []string{"Big NodeAdd QueueSkip", "Big NodeAdd QueueSkip", "Big NodeAdd Queue"}
		if diff := cmp.Diff(want, hints); diff != "" {
			t.Errorf("hints (want -, got +): %s", diff)
		}
	})
}
