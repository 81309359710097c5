// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podsecurity

import (
	"errors"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/pod-security-admission/api"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// meters are the plug-in's metrics, under upstream's names.
type meters struct {
	evaluations, exemptions, errors *prometheus.CounterVec
	allowed                         [2]prometheus.Counter // the most common evaluations, of creations and of updates
	newest                          api.Version
}

// The modes of an evaluation.
const (
	enforcing = "enforce"
	auditing  = "audit"
	warning   = "warn"
)

func newMeters() *meters {
	m := &meters{
		evaluations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_evaluations_total", Help: "Evaluations of pods against a level, without requests that are ignored or exempt.",
		}, []string{"decision", "policy_level", "policy_version", "mode", "request_operation", "resource", "subresource"}),
		exemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_exemptions_total", Help: "Requests that are exempt from pod security.",
		}, []string{"request_operation", "resource", "subresource"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pod_security_errors_total", Help: "Errors that prevented normal evaluation.",
		}, []string{"fatal", "request_operation", "resource", "subresource"}),
		newest: api.MajorMinorVersion(1, 37),
	}
	for i, op := range []string{"create", "update"} {
		m.allowed[i] = m.evaluations.WithLabelValues("allow", "privileged", "latest", enforcing, op, "pod", "")
		for _, r := range []string{"pod", "controller"} {
			m.exemptions.WithLabelValues(op, r, "")
		}
	}
	return m
}

func (m *meters) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	return errors.Join(r.Register(m.evaluations), r.Register(m.exemptions), r.Register(m.errors))
}

func (m *meters) evaluated(a *admit.Attributes, allowed bool, lv api.LevelVersion, mode string) {
	decision := "deny"
	if allowed {
		decision = "allow"
	}
	version := "latest"
	if !lv.Version.Latest() && lv.Level != api.LevelPrivileged {
		if version = lv.Version.String(); m.newest.Older(lv.Version) {
			version = "future"
		}
	}
	op, resource := asked(a)
	if allowed && version == "latest" && lv.Level == api.LevelPrivileged && resource == "pod" && a.Subresource == "" {
		switch a.Operation {
		case admit.Create:
			m.allowed[0].Inc()
			return
		case admit.Update:
			m.allowed[1].Inc()
			return
		}
	}
	m.evaluations.WithLabelValues(decision, string(lv.Level), version, mode, op, resource, a.Subresource).Inc()
}

func (m *meters) spared(a *admit.Attributes) {
	op, resource := asked(a)
	m.exemptions.WithLabelValues(op, resource, a.Subresource).Inc()
}

func (m *meters) failed(a *admit.Attributes, fatal bool) {
	op, resource := asked(a)
	m.errors.WithLabelValues(strconv.FormatBool(fatal), op, resource, a.Subresource).Inc()
}

// asked returns the request's labels.
func asked(a *admit.Attributes) (op, resource string) {
	op, resource = strings.ToLower(string(a.Operation)), "controller"
	if a.Descriptor.Group == "" && a.Descriptor.Resource == "pods" {
		resource = "pod"
	}
	return op, resource
}
