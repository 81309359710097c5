// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	size, health, unhealthy *prometheus.GaugeVec
	emptied                 *prometheus.CounterVec
	one, all                prometheus.Histogram

	told map[string]bool // known zones; guarded by the controller's lock
}

func newMeters(d *controllers.Deps) (*meters, error) {
	const subsystem = "node_collector"
	var failure error
	of := []string{"zone"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help},
			of))
	}
	histogram := func(name, help string, first float64) prometheus.Histogram {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewHistogram(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 4, 8),
		}))
	}
	return &meters{
		size:      gauge("zone_size", "Nodes of a zone."),
		health:    gauge("zone_health", "Which part of a zone is ready, in percent."),
		unhealthy: gauge("unhealthy_nodes_in_zone", "Nodes of a zone that are not ready."),
		emptied: controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(
			prometheus.CounterOpts{Subsystem: subsystem, Name: "evictions_total",
				Help: "Nodes whose pods were evicted because the node was not ready."}, of)),
		one:  histogram("update_node_health_duration_seconds", "How long it takes to see whether a node is well.", 0.001),
		all:  histogram("update_all_nodes_health_duration_seconds", "How long it takes to judge all zones.", 0.01),
		told: map[string]bool{},
	}, failure
}

// tell updates the metrics of all zones. A zone without nodes counts as healthy.
func (m *meters) tell(z *zones) {
	for name := range m.told {
		if z.of[name] == nil {
			m.zone(name, 0, 0)
			delete(m.told, name)
		}
	}
	for name, at := range z.of {
		if !m.told[name] {
			m.told[name] = true
			m.emptied.WithLabelValues(name).Add(0)
		}
		m.zone(name, at.ready, at.unready)
	}
}

func (m *meters) zone(name string, ready, unready int) {
	health := 100.0
	if n := ready + unready; n > 0 {
		health = float64(100*ready) / float64(n)
	}
	m.size.WithLabelValues(name).Set(float64(ready + unready))
	m.health.WithLabelValues(name).Set(health)
	m.unhealthy.WithLabelValues(name).Set(float64(unready))
}
