// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RequestMetrics are kubelet's metrics of the requests for its API.
type RequestMetrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

// NewRequestMetrics makes the metrics. A Server adds them to those that it serves at /metrics.
func NewRequestMetrics() *RequestMetrics {
	labels := []string{"method", "path", "server_type", "long_running"}
	m := &RequestMetrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "http_requests_total", Help: "Number of the http requests received since the server started",
		}, labels),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "http_requests_duration_seconds", Help: "Duration in seconds to serve http requests",
			Buckets: prometheus.DefBuckets,
		}, labels),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: "kubelet", Name: "http_inflight_requests", Help: "Number of the inflight http requests",
		}, labels),
	}
	m.registry.MustRegister(m.requests, m.took, m.inFlight)
	return m
}

// roots are the first parts of the paths that count under their own names.
var roots = []string{
	"attach", "checkpoint", "configz", "containerLogs", "exec", "flagz", "healthz", "metrics", "metrics/cadvisor", "metrics/probes",
	"metrics/resource", "pods", "portForward", "run", "runningpods", "stats", "statusz",
}

// methods are those that count under their own names.
var methods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "OPTIONS", "CONNECT", "PATCH"}

// serve has the handler serve a request, and counts it. Nil metrics count nothing.
func (m *RequestMetrics) serve(handler http.Handler, w http.ResponseWriter, r *http.Request, now func() time.Time) {
	if m == nil {
		handler.ServeHTTP(w, r)
		return
	}
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 3)
	root := parts[0]
	if root == "metrics" && len(parts) > 1 {
		root += "/" + parts[1]
	}
	// As kubelet compares them, which knows no "portforward".
	long := root == "exec" || root == "attach" || root == "portforward" || root == "debug"
	method := r.Method
	if !slices.Contains(roots, root) {
		root = "other"
	}
	if !slices.Contains(methods, method) {
		method = "other"
	}
	labels := []string{method, root, "readwrite", strconv.FormatBool(long)}
	m.requests.WithLabelValues(labels...).Inc()
	flying, start := m.inFlight.WithLabelValues(labels...), now()
	flying.Inc()
	defer func() {
		flying.Dec()
		m.took.WithLabelValues(labels...).Observe(now().Sub(start).Seconds())
	}()
	handler.ServeHTTP(w, r)
}
