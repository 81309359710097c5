// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresources

import "github.com/prometheus/client_golang/prometheus"

// Metrics are kubelet's metrics of the pod resources API.
type Metrics struct {
	requests, list, get, getErrors, allocatable *prometheus.CounterVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "pod_resources_endpoint_" + name, Help: help + " Broken down by server api version.",
		}, []string{"server_api_version"})
	}
	return &Metrics{
		requests:    counter("requests_total", "Cumulative number of requests to the PodResource endpoint."),
		list:        counter("requests_list", "Number of requests to the PodResource List endpoint."),
		get:         counter("requests_get", "Number of requests to the PodResource Get endpoint."),
		getErrors:   counter("errors_get", "Number of requests to the PodResource Get endpoint which returned error."),
		allocatable: counter("requests_get_allocatable", "Number of requests to the PodResource GetAllocatableResources endpoint."),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.list, m.get, m.getErrors, m.allocatable}
}

func (m *Metrics) count(version string, which *prometheus.CounterVec) {
	m.requests.WithLabelValues(version).Inc()
	which.WithLabelValues(version).Inc()
}
