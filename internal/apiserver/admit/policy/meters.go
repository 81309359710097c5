// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celmetrics "k8s.io/apiserver/pkg/admission/plugin/policy/validating/metrics"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// meters are a plug-in's metrics, under kube-apiserver's names: evaluations with consequences, and their durations.
type meters struct {
	checks   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMeters(r prometheus.Registerer, subsystem string, labels ...string) (*meters, error) {
	m := &meters{
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "check_total",
			Help: "[BETA] Evaluations of admission policies, by policy, binding, kind of error, and enforcement.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "check_duration_seconds", Buckets: []float64{0.0000005, 0.001, 0.01, 0.1, 1},
			Help: "[BETA] Duration of single expressions of admission policies, by policy, binding, kind of error, and enforcement.",
		}, labels),
	}
	if r == nil {
		return m, nil
	}
	return m, errors.Join(r.Register(m.checks), r.Register(m.duration))
}

func (m *meters) observe(took time.Duration, labels ...string) {
	m.checks.WithLabelValues(labels...).Inc()
	m.duration.WithLabelValues(labels...).Observe(took.Seconds())
}

// Join implements [admit.Hosted].
func (s *Validating) Join(h *admit.Host) (err error) {
	if s.meters, err = newMeters(h.Metrics, "validating_admission_policy", "policy", "policy_binding", "error_type",
		"enforcement_action"); err != nil {
		return err
	}
	return s.source.Join(h)
}

// Join implements [admit.Hosted].
func (s *Mutating) Join(h *admit.Host) (err error) {
	if s.meters, err = newMeters(h.Metrics, "mutating_admission_policy", "policy", "policy_binding", "error_type"); err != nil {
		return err
	}
	return s.source.Join(h)
}

// decided counts a decision of a validating policy.
func (m *meters) decided(p *policy[validating.Validator], b *binding, d *validating.PolicyDecision, action string) {
	m.observe(d.Elapsed, p.name, b.name, string(validating.ErrorType(d)), action)
}

// mutated counts a mutation. A mutation that the end of the request cut short is not the policy's error.
func (m *meters) mutated(c *call, took time.Duration, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	m.observe(took, c.policy.name, c.binding.name, string(celmetrics.ErrorType(err)))
}
