// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	given, released *prometheus.CounterVec
	most, used      *prometheus.GaugeVec
	tries           *prometheus.HistogramVec
}

func newMeters(d *controllers.Deps) (*meters, error) {
	const subsystem = "node_ipam_controller"
	var failure error
	of := []string{"clusterCIDR"}
	counter := func(name, help string) *prometheus.CounterVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: name,
			Help: help}, of))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help},
			of))
	}
	return &meters{
		given:    counter("cidrset_cidrs_allocations_total", "Subnets allocated to nodes."),
		released: counter("cidrset_cidrs_releases_total", "Subnets released by nodes."),
		most:     gauge("cirdset_max_cidrs", "Subnets that there are."), // upstream's name
		used:     gauge("cidrset_usage_cidrs", "Which part of the subnets is given."),
		tries: controllers.Keep(d.Metrics, &failure, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: "cidrset_allocation_tries_per_request", Help: "Subnets tried until one was free.",
			Buckets: prometheus.ExponentialBuckets(1, 5, 5),
		}, of)),
	}, failure
}

// began records a new pool.
func (m *meters) began(p *pool) {
	m.most.WithLabelValues(p.cluster.String()).Set(float64(p.size))
	m.used.WithLabelValues(p.cluster.String()).Set(float64(len(p.taken)) / float64(p.size))
}

// changed records the change of a pool; before is its number of allocated subnets before.
func (m *meters) changed(p *pool, before int) {
	switch by := len(p.taken) - before; {
	case by > 0:
		m.given.WithLabelValues(p.cluster.String()).Add(float64(by))
	case by < 0:
		m.released.WithLabelValues(p.cluster.String()).Add(float64(-by))
	default:
		return
	}
	m.used.WithLabelValues(p.cluster.String()).Set(float64(len(p.taken)) / float64(p.size))
}
