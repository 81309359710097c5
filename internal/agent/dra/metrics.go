// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// anyDriver stands for all drivers in dra_resource_claims_in_use.
const anyDriver = "<any>"

// Metrics are kubelet's metrics of dynamic resource allocation.
type Metrics struct {
	operations *prometheus.HistogramVec
	calls      *prometheus.HistogramVec
	prepares   *prometheus.CounterVec
	unprepares *prometheus.CounterVec
	claims     *prometheus.Desc
	counts     atomic.Pointer[func() map[string]int]
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	buckets := prometheus.ExponentialBucketsRange(.1, 40, 15)
	skips := func(name, call string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "dra", Name: name, Help: "Calls of " + call + " that were left out because of SkipNodeOperations.",
		}, []string{"driver_name"})
	}
	return &Metrics{
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "dra", Name: "operations_duration_seconds", Buckets: buckets,
			Help: "How long it took to prepare or unprepare all ResourceClaims of a pod, by the operation and whether it failed.",
		}, []string{"operation_name", "is_error"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "dra", Name: "grpc_operations_duration_seconds", Help: "Duration in seconds of the DRA gRPC operations", Buckets: buckets,
		}, []string{"driver_name", "method_name", "grpc_status_code"}),
		prepares:   skips("node_prepare_skips_total", "NodePrepareResources"),
		unprepares: skips("node_unprepare_skips_total", "NodeUnprepareResources"),
		claims: prometheus.NewDesc("dra_resource_claims_in_use",
			"Prepared ResourceClaims, by driver; those of several drivers count for each. The driver <any> stands for all of them.",
			[]string{"driver_name"}, nil),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.operations, m.calls, m.prepares, m.unprepares, m}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.claims }

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	counts := m.counts.Load()
	if counts == nil {
		return
	}
	for driver, n := range (*counts)() {
		ch <- prometheus.MustNewConstMetric(m.claims, prometheus.GaugeValue, float64(n), driver)
	}
}

func (m *Metrics) inUse(counts func() map[string]int) { m.counts.Store(&counts) }

func (m *Metrics) operation(name string, took time.Duration, err error) {
	m.operations.WithLabelValues(name, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

func (m *Metrics) skipped(driver string, preparing bool) {
	if preparing {
		m.prepares.WithLabelValues(driver).Inc()
		return
	}
	m.unprepares.WithLabelValues(driver).Inc()
}

// interceptor times the calls of a driver.
func (m *Metrics) interceptor(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		start := time.Now()
		err := call(ctx, method, in, out, conn, o...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String()).Observe(time.Since(start).Seconds())
		return err
	}
}
