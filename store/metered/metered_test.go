// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metered_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/metered"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

func TestEngine(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock alarm.Clock) storetest.Open {
		return func() (store.Engine, error) {
			return metered.New(memory.Open(memory.Options{Clock: clock}), nil), nil
		}
	}, storetest.Features{Clock: true})
}

// TestSnapshot counts a few calls, each of which takes 3 µs on the test's clock.
func TestSnapshot(t *testing.T) {
	ctx := context.Background()
	now := time.Unix(0, 0)
	e := metered.New(memory.Open(memory.Options{}), func() time.Time { now = now.Add(3 * time.Microsecond); return now })
	s := store.New(e)
	if _, err := s.Create(ctx, "/a", []byte("12345"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, "/a", nil, 0); err == nil {
		t.Fatal("no conflict")
	}
	if _, _, err := s.Commit(ctx, store.Op{}); !errors.Is(err, store.ErrInvalid) {
		t.Fatal(err)
	}
	if _, err := s.List(ctx, "/"); err != nil {
		t.Fatal(err)
	}
	w, err := s.Watch(ctx, "/", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(ctx); err != nil {
		t.Fatal(err)
	}
	have := e.Snapshot()
	latency := metered.Latency{Count: 3, Sum: 9 * time.Microsecond}
	latency.Buckets[2] = 3 // more than 2 µs, at most 4 µs
	want := metered.Operation{Latency: latency, Errors: 1, Conflicts: 1}
	if diff := cmp.Diff(want, have.Operations["commit"]); diff != "" {
		t.Error(diff)
	}
	have.Operations = nil
	all := metered.Snapshot{
		Revision: 2, Compacted: 1, Watchers: 1, Events: 1, Read: 1, Written: 7,
		Size: store.Size{Keys: 1, Bytes: 7, History: 1},
	}
	if diff := cmp.Diff(all, have); diff != "" {
		t.Error(diff)
	}
	w.Close()
	w.Close()
	if n := e.Snapshot().Watchers; n != 0 {
		t.Errorf("%d watchers are open", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestCollector registers the collector, which checks it, and gathers.
func TestCollector(t *testing.T) {
	e := metered.New(memory.Open(memory.Options{}), nil)
	defer func() { _ = e.Close() }()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(e.Collector()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Commit(context.Background(), store.Op{Key: "/a", Value: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range families {
		switch f.GetName() {
		case "mortise_store_operation_duration_seconds":
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == "commit" && m.GetHistogram().GetSampleCount() == 1 {
					found++
				}
			}
		case "mortise_store_revision":
			if f.GetMetric()[0].GetGauge().GetValue() == 2 {
				found++
			}
		}
	}
	if found != 2 || len(families) != 14 {
		t.Errorf("%d families, %d of the two looked for", len(families), found)
	}
}
