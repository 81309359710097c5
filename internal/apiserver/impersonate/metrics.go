// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package impersonate

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// metrics count impersonation attempts, and their authorization checks, by mode and decision.
type metrics struct {
	attempts, asks       *prometheus.CounterVec
	attemptTook, askTook *prometheus.HistogramVec
}

func newMetrics() *metrics {
	labels := []string{"mode", "decision"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_impersonation_" + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_impersonation_" + name, Help: help,
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, labels)
	}
	return &metrics{
		attempts:    counter("attempts_total", "[ALPHA] Total number of impersonation attempts split by mode and decision."),
		attemptTook: histogram("attempts_duration_seconds", "[ALPHA] Latency of impersonation attempts in seconds split by mode and decision."),
		asks: counter("authorization_attempts_total",
			"[ALPHA] Total number of authorization checks made by the impersonation handler split by mode and decision."),
		askTook: histogram("authorization_attempts_duration_seconds",
			"[ALPHA] Latency of authorization checks made by the impersonation handler in seconds split by mode and decision."),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.attempts, m.attemptTook, m.asks, m.askTook}
}

// Describe implements [prometheus.Collector].
func (i *Impersonator) Describe(to chan<- *prometheus.Desc) {
	for _, c := range i.metrics.all() {
		c.Describe(to)
	}
}

// Collect implements [prometheus.Collector].
func (i *Impersonator) Collect(to chan<- prometheus.Metric) {
	for _, c := range i.metrics.all() {
		c.Collect(to)
	}
}

// attempted counts an attempt. A denied attempt has no mode.
func (m *metrics) attempted(constraint string, err error, took time.Duration) {
	mode, decision := "", denied
	if err == nil {
		mode, decision = modeOf(constraint), granted
	}
	m.attempts.WithLabelValues(mode, decision).Inc()
	m.attemptTook.WithLabelValues(mode, decision).Observe(took.Seconds())
}

const granted, denied = "allowed", "denied"

// modeOf returns the mode of a verb. The mode of unconstrained impersonation is legacy.
func modeOf(verb string) string {
	if verb == "" || verb == "impersonate" {
		return "legacy"
	}
	for _, mode := range []string{"associated-node", "arbitrary-node", "serviceaccount", "user-info"} {
		if verb == "impersonate:"+mode || strings.HasPrefix(verb, "impersonate-on:"+mode+":") {
			return mode
		}
	}
	return "unknown"
}

// measured is an authorizer whose decisions are counted.
type measured struct {
	authorize.Authorizer
	metrics *metrics
}

// Authorize implements [authorize.Authorizer].
func (a measured) Authorize(ctx context.Context, at *authorize.Attributes) (authorize.Decision, string, error) {
	began := time.Now()
	decision, reason, err := a.Authorizer.Authorize(ctx, at)
	label := denied
	if decision == authorize.Allow {
		label = granted
	}
	a.metrics.asks.WithLabelValues(modeOf(at.Verb), label).Inc()
	a.metrics.askTook.WithLabelValues(modeOf(at.Verb), label).Observe(time.Since(began).Seconds())
	return decision, reason, err
}
