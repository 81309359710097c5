// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are upstream's metrics of registrations.
type metrics struct {
	mu   sync.Mutex
	is   map[string]bool
	less *prometheus.CounterVec
}

var unavailable = prometheus.NewDesc("aggregator_unavailable_apiservice",
	"[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.", []string{"name"}, nil)

func newMetrics() *metrics {
	return &metrics{is: map[string]bool{}, less: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "aggregator_unavailable_apiservice_total",
		Help: "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
	}, []string{"name", "reason"})}
}

// says records whether a registration's server is available.
func (m *metrics) says(name string, available bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.is[name] = available
}

func (m *metrics) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.is, name)
}

// lost counts a server that became unavailable.
func (m *metrics) lost(name, reason string) { m.less.WithLabelValues(name, reason).Inc() }

// Describe implements [prometheus.Collector].
func (a *Aggregator) Describe(to chan<- *prometheus.Desc) {
	to <- unavailable
	a.metrics.less.Describe(to)
}

// Collect implements [prometheus.Collector].
func (a *Aggregator) Collect(to chan<- prometheus.Metric) {
	m := a.metrics
	m.mu.Lock()
	for name, ok := range m.is {
		v := 1.0
		if ok {
			v = 0
		}
		to <- prometheus.MustNewConstMetric(unavailable, prometheus.GaugeValue, v, name)
	}
	m.mu.Unlock()
	m.less.Collect(to)
}
