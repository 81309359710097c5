// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/agent/images"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podresources"
)

// Metrics are the metrics of a node under kubelet's names, and those of its process.
type Metrics struct {
	registry  *prometheus.Registry
	evictions *prometheus.CounterVec
	images    *images.Metrics
	admission *podadmission.Metrics
	devices   *devicemanager.Metrics
	resources *podresources.Metrics
}

// NewMetrics makes the metrics of a node.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), images: images.NewMetrics(), admission: podadmission.NewMetrics(),
		devices: devicemanager.NewMetrics(), resources: podresources.NewMetrics(),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "evictions", Help: "Evicted pods, by eviction signal.",
		}, []string{"eviction_signal"})}
	m.registry.MustRegister(m.evictions)
	m.registry.MustRegister(m.images.Collectors()...)
	m.registry.MustRegister(m.admission.Collectors()...)
	m.registry.MustRegister(m.devices.Collectors()...)
	m.registry.MustRegister(m.resources.Collectors()...)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Gatherer returns all metrics.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }
