// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are kubelet's metrics of the start of a new node, in seconds. All are zero if the Node existed when the process started.
type Metrics struct {
	booted, started time.Time // booted is zero if it is not known

	mu                        sync.Mutex
	asked, registered, usable time.Time // zero: not yet

	beforeProcess, beforeRegistration, registration, afterRegistration, total prometheus.Gauge
}

// NewMetrics makes the metrics of a node on a machine that booted, and in a process that started, at these times.
func NewMetrics(booted, started time.Time) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: "kubelet", Name: name, Help: help})
	}
	return &Metrics{
		booted: booted, started: started,
		beforeProcess: gauge("node_startup_pre_kubelet_duration_seconds",
			"Duration in seconds of node startup before kubelet starts."),
		beforeRegistration: gauge("node_startup_pre_registration_duration_seconds",
			"Duration in seconds of node startup before registration."),
		registration: gauge("node_startup_registration_duration_seconds", "Duration in seconds of node startup during registration."),
		afterRegistration: gauge("node_startup_post_registration_duration_seconds",
			"Duration in seconds of node startup after registration."),
		total: gauge("node_startup_duration_seconds", "Duration in seconds of node startup in total."),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.beforeProcess, m.beforeRegistration, m.registration, m.afterRegistration, m.total}
}

// asks notes an attempt to register the node.
func (m *Metrics) asks(now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked.IsZero() {
		m.asked = now
	}
}

// made notes that the Node is new.
func (m *Metrics) made(now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asked.IsZero() || !m.registered.IsZero() {
		return
	}
	m.registered = now
	if !m.booted.IsZero() {
		m.beforeProcess.Set(m.started.Sub(m.booted).Seconds())
	}
	m.beforeRegistration.Set(m.asked.Sub(m.started).Seconds())
	m.registration.Set(m.registered.Sub(m.asked).Seconds())
}

// ready notes that the API server has seen the node ready.
func (m *Metrics) ready(now time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registered.IsZero() || !m.usable.IsZero() {
		return
	}
	m.usable = now
	m.afterRegistration.Set(m.usable.Sub(m.registered).Seconds())
	if !m.booted.IsZero() {
		m.total.Set(m.usable.Sub(m.booted).Seconds())
	}
}
