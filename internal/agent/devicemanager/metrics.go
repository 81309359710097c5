// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import "github.com/prometheus/client_golang/prometheus"

// Metrics are kubelet's metrics of device plug-ins.
type Metrics struct {
	registrations *prometheus.CounterVec
	allocations   *prometheus.HistogramVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "device_plugin_registration_total",
			Help: "Cumulative number of device plugin registrations. Broken down by resource name.",
		}, []string{"resource_name"}),
		allocations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "device_plugin_alloc_duration_seconds",
			Help: "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.", Buckets: prometheus.DefBuckets,
		}, []string{"resource_name"}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.registrations, m.allocations}
}
