// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// deviceMetrics are the metrics about pods that get devices.
type deviceMetrics struct {
	waits       *prometheus.HistogramVec
	allocations *prometheus.CounterVec
	claims      *prometheus.CounterVec
}

func newDeviceMetrics() deviceMetrics {
	labels := []string{"profile", "driver", "status"}
	return deviceMetrics{
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "scheduler_dra_bindingconditions_wait_duration_seconds",
			Help:    "How long pods waited for devices to become ready, by the devices' driver.",
			Buckets: prometheus.ExponentialBuckets(0.1, 2, 14),
		}, labels),
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scheduler_dra_bindingconditions_allocations_total",
			Help: "Devices with binding conditions, by driver and result, counted in each attempt.",
		}, labels),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dynamic_resource_allocation_resourceclaim_creates_total",
			Help: "Creations of ResourceClaims, by result and by owner.",
		}, []string{"status", "admin_access", "owner_api_group", "owner_api_kind"}),
	}
}

func (d *deviceMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{d.waits, d.allocations, d.claims}
}

// DevicesAwaited records how long a pod waited for devices. drivers names the driver of each device, conditional the driver of each device
// that had to become ready. status is success, failure, timeout or error.
func (m *Metrics) DevicesAwaited(profile string, drivers, conditional []string, status string, took time.Duration) {
	if m == nil {
		return
	}
	for _, driver := range drivers {
		m.devices.waits.WithLabelValues(profile, driver, status).Observe(took.Seconds())
	}
	for _, driver := range conditional {
		m.devices.allocations.WithLabelValues(profile, driver, status).Inc()
	}
}

// ClaimCreated counts an attempt to create a claim for a pod's extended resources.
func (m *Metrics) ClaimCreated(err error) {
	if m == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "failure"
	}
	m.devices.claims.WithLabelValues(status, "false", "", "Pod").Inc()
}
