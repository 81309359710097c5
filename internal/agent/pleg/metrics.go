// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pleg

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are kubelet's metrics of relists.
type Metrics struct {
	took, interval prometheus.Histogram
	last           prometheus.Gauge
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: prometheus.DefBuckets})
	}
	return &Metrics{
		took:     histogram("pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG."),
		interval: histogram("pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG."),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Subsystem: "kubelet", Name: "pleg_last_seen_seconds", Help: "Timestamp in seconds when PLEG was last seen active.",
		}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.took, m.interval, m.last}
}

// relisted notes a relist. The one before it began at before; zero: there was none.
func (m *Metrics) relisted(before, began, ended time.Time) {
	if m == nil {
		return
	}
	m.took.Observe(ended.Sub(began).Seconds())
	if !before.IsZero() {
		m.interval.Observe(began.Sub(before).Seconds())
	}
	m.last.Set(float64(ended.Unix()))
}
