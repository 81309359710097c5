// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorize

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Attempts are upstream's metrics of authorization decisions and their latency.
type Attempts struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	results  [4]result
}

type result struct {
	total    prometheus.Counter
	duration prometheus.Observer
}

// NewAttempts returns the metrics without observations.
func NewAttempts() *Attempts {
	m := &Attempts{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "authorization_attempts_total",
			Help: "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'.",
		}, []string{"result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "authorization_duration_seconds", Help: "[ALPHA] Authorization duration in seconds broken out by result.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"result"}),
	}
	for i, name := range []string{"no-opinion", "denied", "allowed", "error"} {
		m.results[i] = result{m.total.WithLabelValues(name), m.duration.WithLabelValues(name)}
	}
	return m
}

// Observe counts a decision.
func (m *Attempts) Observe(d Decision, err error, took time.Duration) {
	r := &m.results[d]
	if err != nil && d != Allow {
		r = &m.results[3]
	}
	r.total.Inc()
	r.duration.Observe(took.Seconds())
}

// Describe implements [prometheus.Collector].
func (m *Attempts) Describe(to chan<- *prometheus.Desc) {
	m.total.Describe(to)
	m.duration.Describe(to)
}

// Collect implements [prometheus.Collector].
func (m *Attempts) Collect(to chan<- prometheus.Metric) {
	m.total.Collect(to)
	m.duration.Collect(to)
}
