// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// meters are the metrics of both plug-ins, under kube-apiserver's names.
type meters struct {
	duration  *prometheus.HistogramVec
	requests  *prometheus.CounterVec
	rejection *prometheus.CounterVec
	failOpen  *prometheus.CounterVec
}

func newMeters(r prometheus.Registerer) *meters {
	m := &meters{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_webhook_admission_duration_seconds", Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 25},
			Help: "[STABLE] Duration of calls to admission webhooks, by webhook, type (admit or validating), operation, and whether the request was rejected.",
		}, []string{"name", "type", "operation", "rejected"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_request_total",
			Help: "[ALPHA] Calls to admission webhooks, by webhook, type, operation, HTTP status code, and whether the request was rejected.",
		}, []string{"name", "type", "operation", "code", "rejected"}),
		rejection: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_rejection_count",
			Help: "[ALPHA] Requests rejected for an admission webhook, by webhook, type, operation, kind of error, and code of the rejection.",
		}, []string{"name", "type", "operation", "error_type", "rejection_code"}),
		failOpen: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_admission_webhook_fail_open_count",
			Help: "[ALPHA] Failed calls to admission webhooks that were ignored, by webhook and type.",
		}, []string{"name", "type"}),
	}
	if r == nil {
		return m
	}
	m.duration, m.requests = shared(r, m.duration), shared(r, m.requests)
	m.rejection, m.failOpen = shared(r, m.rejection), shared(r, m.failOpen)
	return m
}

// shared registers c, or returns the collector that the other plug-in has registered.
func shared[T prometheus.Collector](r prometheus.Registerer, c T) T {
	var there prometheus.AlreadyRegisteredError
	if err := r.Register(c); errors.As(err, &there) {
		if old, ok := there.ExistingCollector.(T); ok {
			return old
		}
	}
	return c
}

func (m *meters) call(name, step, op string, took time.Duration, rejected bool, code int) {
	m.duration.WithLabelValues(name, step, op, strconv.FormatBool(rejected)).Observe(took.Seconds())
	m.requests.WithLabelValues(name, step, op, strconv.Itoa(min(code, 600)), strconv.FormatBool(rejected)).Inc()
}

func (m *meters) reject(name, step, op, kind string, code int) {
	m.rejection.WithLabelValues(name, step, op, kind, strconv.Itoa(min(code, 600))).Inc()
}
