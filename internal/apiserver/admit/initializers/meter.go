// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meter counts turns, and reports the waiting objects at the time of collection.
type meter struct {
	held  *held
	turns *prometheus.CounterVec
	took  *prometheus.HistogramVec
}

var (
	waitingObjects = prometheus.NewDesc("mortise_initializer_waiting_objects", "Objects that wait for an initializer.", []string{"name"}, nil)
	oldestSince    = prometheus.NewDesc("mortise_initializer_oldest_since_timestamp_seconds",
		"Time since which the longest waiting object has waited for an initializer.", []string{"name"}, nil)
)

func newMeter(h *held) *meter {
	return &meter{
		held: h,
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mortise_initializer_turns_total",
			Help: "Objects that waited for an initializer, by result: finished, rejected, or deleted meanwhile.",
		}, []string{"name", "result"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mortise_initializer_turn_duration_seconds", Help: "Time that objects waited for an initializer.", Buckets: []float64{0.005,
				0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"name"}),
	}
}

func (m *meter) turn(t *turn, took time.Duration) {
	name := t.waits.head().Name
	m.turns.WithLabelValues(name, t.result).Inc()
	m.took.WithLabelValues(name).Observe(took.Seconds())
}

// Describe implements [prometheus.Collector].
func (m *meter) Describe(to chan<- *prometheus.Desc) {
	m.turns.Describe(to)
	m.took.Describe(to)
	to <- waitingObjects
	to <- oldestSince
}

// Collect implements [prometheus.Collector].
func (m *meter) Collect(to chan<- prometheus.Metric) {
	m.turns.Collect(to)
	m.took.Collect(to)
	for ref, all := range m.held.waiting() {
		oldest := all[0].Since
		for _, w := range all {
			if w.Since.Before(oldest) {
				oldest = w.Since
			}
		}
		to <- prometheus.MustNewConstMetric(waitingObjects, prometheus.GaugeValue, float64(len(all)), ref.Name)
		to <- prometheus.MustNewConstMetric(oldestSince, prometheus.GaugeValue, float64(oldest.UnixNano())/float64(time.Second), ref.Name)
	}
}
