// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// Metrics are kubelet's metrics of the pod resources API.
type Metrics struct {
	requests, list, get, allocatable         *prometheus.CounterVec
	listErrors, getErrors, allocatableErrors *prometheus.CounterVec
	pods, listPods, getPod, watchPods        *prometheus.CounterVec
	dropped                                  prometheus.Counter // stays 0: slow watchers of pods get the newest state
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "pod_resources_endpoint_" + name, Help: help + " Broken down by server api version.",
		}, []string{"server_api_version"})
	}
	pods := func(name, what string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "pod_requests_" + name,
			Help: "Number of requests to the PodsAPI " + what + "endpoint. Broken down by server api version and status code.",
		}, []string{"server_api_version", "status_code"})
	}
	return &Metrics{
		pods: pods("total", ""), listPods: pods("list_total", "List "), getPod: pods("get_total", "Get "),
		watchPods: pods("watch_total", "Watch "),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "pod_watch_events_dropped_total", Help: "Cumulative number of pod watch events dropped.",
		}),
		listErrors: counter("errors_list", "Number of requests to the PodResource List endpoint which returned error."),
		allocatableErrors: counter("errors_get_allocatable",
			"Number of requests to the PodResource GetAllocatableResources endpoint which returned error."),
		requests:    counter("requests_total", "Cumulative number of requests to the PodResource endpoint."),
		list:        counter("requests_list", "Number of requests to the PodResource List endpoint."),
		get:         counter("requests_get", "Number of requests to the PodResource Get endpoint."),
		getErrors:   counter("errors_get", "Number of requests to the PodResource Get endpoint which returned error."),
		allocatable: counter("requests_get_allocatable", "Number of requests to the PodResource GetAllocatableResources endpoint."),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.requests, m.list, m.get, m.allocatable, m.listErrors, m.getErrors, m.allocatableErrors,
		m.pods, m.listPods, m.getPod, m.watchPods, m.dropped,
	}
}

func (m *Metrics) count(version string, which *prometheus.CounterVec) {
	m.requests.WithLabelValues(version).Inc()
	which.WithLabelValues(version).Inc()
}

// countPods books a call of the pods API that has ended.
func (m *Metrics) countPods(which *prometheus.CounterVec, err error) {
	code := status.Code(err).String()
	m.pods.WithLabelValues("v1alpha1", code).Inc()
	which.WithLabelValues("v1alpha1", code).Inc()
}
