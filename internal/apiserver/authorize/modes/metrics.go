// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// Metrics are upstream's metrics of authorizers, of their webhooks and of the reloads of their configuration.
type Metrics struct {
	metrics.NoopRequestMetrics // kube-apiserver does not have these

	server string // hash of the server's ID
	hash   atomic.Pointer[string]

	decisions, evaluations, failOpen, matchErrors, exclusions, reloads *prometheus.CounterVec
	duration, matching                                                 *prometheus.HistogramVec
	last                                                               *prometheus.GaugeVec
}

var _ metrics.AuthorizerMetrics = (*Metrics)(nil)

var lastConfig = prometheus.NewDesc("apiserver_authorization_config_controller_last_config_info",
	"[ALPHA] Information about the last applied authorization configuration with hash as label, split by apiserver identity.",
	[]string{"apiserver_id_hash", "hash"}, nil)

func newMetrics(serverID string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_authorization_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_authorization_" + name, Help: help, Buckets: buckets}, labels)
	}
	return &Metrics{
		server: hash([]byte(serverID)),
		decisions: counter("decisions_total",
			"[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.", "type", "name",
			"decision"),
		evaluations: counter("webhook_evaluations_total", "[ALPHA] Round-trips to authorization webhooks.", "name", "result"),
		duration:    histogram("webhook_duration_seconds", "[ALPHA] Request latency in seconds.", prometheus.DefBuckets, "name", "result"),
		failOpen: counter("webhook_evaluations_fail_open_total", "[ALPHA] NoOpinion results due to webhook timeout or error.", "name",
			"result"),
		matchErrors: counter("match_condition_evaluation_errors_total",
			"[ALPHA] Total number of errors when an authorization webhook encounters a match condition error split by authorizer type and name.",
			"type", "name"),
		exclusions: counter("match_condition_exclusions_total",
			"[ALPHA] Total number of exclusions when an authorization webhook is skipped because match conditions exclude it.", "type", "name"),
		matching: histogram("match_condition_evaluation_seconds",
			"[ALPHA] Authorization match condition evaluation time in seconds, split by authorizer type and name.",
			[]float64{0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25}, "type", "name"),
		reloads: counter("config_controller_automatic_reloads_total",
			"[BETA] Total number of automatic reloads of authorization configuration split by status and apiserver identity.", "status",
			"apiserver_id_hash"),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
			Help: "[BETA] Timestamp of the last automatic reload of authorization configuration split by status and apiserver identity.",
		}, []string{"status", "apiserver_id_hash"}),
	}
}

func hash(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.decisions, m.evaluations, m.duration, m.failOpen, m.matchErrors, m.exclusions, m.matching, m.reloads,
		m.last}
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, p := range m.collectors() {
		p.Describe(to)
	}
	to <- lastConfig
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, p := range m.collectors() {
		p.Collect(to)
	}
	if h := m.hash.Load(); h != nil {
		to <- prometheus.MustNewConstMetric(lastConfig, prometheus.GaugeValue, 1, m.server, *h)
	}
}

func (m *Metrics) applied(data []byte) {
	h := hash(data)
	m.hash.Store(&h)
}

func (m *Metrics) reloaded(ok bool) {
	status := "failure"
	if ok {
		status = "success"
	}
	m.reloads.WithLabelValues(status, m.server).Inc()
	m.last.WithLabelValues(status, m.server).SetToCurrentTime()
}

// RecordWebhookEvaluation counts a call of a webhook.
func (m *Metrics) RecordWebhookEvaluation(_ context.Context, name, result string) {
	m.evaluations.WithLabelValues(name, result).Inc()
}

// RecordWebhookDuration observes the duration of a webhook call.
func (m *Metrics) RecordWebhookDuration(_ context.Context, name, result string, seconds float64) {
	m.duration.WithLabelValues(name, result).Observe(seconds)
}

// RecordWebhookFailOpen counts a failed webhook call that resulted in no opinion.
func (m *Metrics) RecordWebhookFailOpen(_ context.Context, name, result string) {
	m.failOpen.WithLabelValues(name, result).Inc()
}

// RecordAuthorizationMatchConditionEvaluation observes the duration of a webhook's match conditions.
func (m *Metrics) RecordAuthorizationMatchConditionEvaluation(_ context.Context, kind, name string, took time.Duration) {
	m.matching.WithLabelValues(kind, name).Observe(took.Seconds())
}

// RecordAuthorizationMatchConditionEvaluationFailure counts match conditions that failed.
func (m *Metrics) RecordAuthorizationMatchConditionEvaluationFailure(_ context.Context, kind, name string) {
	m.matchErrors.WithLabelValues(kind, name).Inc()
}

// RecordAuthorizationMatchConditionExclusion counts a webhook that was not called because of its match conditions.
func (m *Metrics) RecordAuthorizationMatchConditionExclusion(_ context.Context, kind, name string) {
	m.exclusions.WithLabelValues(kind, name).Inc()
}

// count wraps z to count its decisions.
func (m *Metrics) count(kind, name string, z authorize.Authorizer) authorize.Authorizer {
	return &counted{name: name, next: z, to: func(decision string) prometheus.Counter {
		return m.decisions.WithLabelValues(kind, name,
			decision)
	}}
}

// counted counts the decisions of an authorizer. It creates the counters at the first decision.
type counted struct {
	name            string
	next            authorize.Authorizer
	to              func(decision string) prometheus.Counter
	allowed, denied atomic.Pointer[prometheus.Counter]
}

// Name returns the name in the configuration.
func (z *counted) Name() string { return z.name }

// Authorize calls the authorizer and counts its decision.
func (z *counted) Authorize(ctx context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	d, reason, err := z.next.Authorize(ctx, a)
	switch d {
	case authorize.Allow:
		z.inc(&z.allowed, "allowed")
		explain.From(ctx).DecidedBy(z.name)
	case authorize.Deny:
		z.inc(&z.denied, "denied")
		explain.From(ctx).DecidedBy(z.name)
	case authorize.NoOpinion:
	}
	return d, reason, err
}

func (z *counted) inc(at *atomic.Pointer[prometheus.Counter], decision string) {
	c := at.Load()
	if c == nil {
		made := z.to(decision)
		c = &made
		at.Store(c)
	}
	(*c).Inc()
}
