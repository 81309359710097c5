// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are kubelet's metrics of cgroups.
type Metrics struct {
	took    *prometheus.HistogramVec
	version prometheus.Gauge
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "cgroup_manager_duration_seconds", Buckets: prometheus.DefBuckets,
			Help: "Duration in seconds for cgroup manager operations. Broken down by method.",
		}, []string{"operation_type"}),
		version: prometheus.NewGauge(prometheus.GaugeOpts{
			Subsystem: "kubelet", Name: "cgroup_version", Help: "cgroup version on the hosts.",
		}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.took, m.version}
}

// observe books an operation that begins now; the function that it returns ends it. A nil Metrics books nothing.
func (m *Metrics) observe(operation string) (end func()) {
	if m == nil {
		return func() {}
	}
	timer := prometheus.NewTimer(m.took.WithLabelValues(operation))
	return func() { timer.ObserveDuration() }
}

// of notes the machine's version of cgroups.
func (m *Metrics) of(unified bool) {
	if m == nil {
		return
	}
	m.version.Set(1)
	if unified {
		m.version.Set(2)
	}
}
