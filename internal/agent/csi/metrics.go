// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Metrics are kubelet's metrics of storage.
type Metrics struct {
	calls      *prometheus.HistogramVec
	operations *prometheus.HistogramVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	return &Metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "csi", Name: "operations_seconds", Buckets: buckets,
			Help: "How long calls of CSI drivers took, by driver, method and gRPC status.",
		}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"}),
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Buckets: buckets,
			Help: "How long storage operations took, by plug-in, operation and result.",
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.calls, m.operations}
}

// Operation notes an operation, such as volume_mount, on a volume of a driver. It implements volumes.Operations.
func (m *Metrics) Operation(plugin, operation string, took time.Duration, err error) {
	result := "success"
	if err != nil {
		result = "fail-unknown"
	}
	m.operations.WithLabelValues(plugin, operation, result, "false").Observe(took.Seconds())
}

// interceptor times the calls of a driver.
func (m *Metrics) interceptor(driver string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, in, out any, conn *grpc.ClientConn, call grpc.UnaryInvoker, o ...grpc.CallOption) error {
		start := time.Now()
		err := call(ctx, method, in, out, conn, o...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(time.Since(start).Seconds())
		return err
	}
}
