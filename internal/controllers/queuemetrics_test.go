// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// TestQueueMetrics: keys are counted once while they wait, those that come back later too; and what is under way is told.
func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, err := NewMetrics(registry)
		if err != nil {
			t.Fatal(err)
		}
		d := &Deps{Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler), Metrics: m, scope: &scope{}}
		q := NewQueue[string](d, "things", 1)
		q.Add("a")
		q.Add("a")
		q.AddAfter("b", time.Second)
		expect := func(want map[string]float64) {
			t.Helper()
			families, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, f := range families {
				if _, ok := want[f.GetName()]; !ok || len(f.Metric) != 1 {
					continue
				}
				one := f.Metric[0]
				got[f.GetName()] = one.GetCounter().GetValue() + one.GetGauge().GetValue() + float64(one.GetHistogram().GetSampleCount())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		all := func(adds, depth, begun, under, done float64) map[string]float64 {
			return map[string]float64{
				"workqueue_adds_total": adds, "workqueue_depth": depth, "workqueue_queue_duration_seconds": begun,
				"workqueue_work_duration_seconds":   done,
				"workqueue_unfinished_work_seconds": under, "workqueue_longest_running_processor_seconds": under,
			}
		}
		expect(all(1, 1, 0, 0, 0))
		ctx, cancel := context.WithCancel(t.Context())
		proceed, done := make(chan bool), make(chan error, 1)
		go func() {
			done <- q.Run(ctx, func(context.Context, string) error {
				<-proceed
				return nil
			})
		}()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		expect(all(2, 1, 1, 3, 0))
		proceed <- true
		proceed <- true
		synctest.Wait()
		expect(all(2, 0, 2, 0, 2))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
