// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpointslicemirroring

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	changes                                *prometheus.CounterVec
	added, updated, removed, skipped, took *prometheus.HistogramVec
	endpoints, slices, ideal               *prometheus.GaugeVec

	mu     sync.Mutex
	booked map[types.NamespacedName]amount // by Endpoints
	sum    amount
}

func newMeters(d *controllers.Deps) (*meters, error) {
	const subsystem = "endpoint_slice_mirroring_controller"
	var failure error
	histogram := func(name, help string, first float64) *prometheus.HistogramVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(first, 2, 15)}, nil))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: subsystem, Name: name, Help: help},
			nil))
	}
	return &meters{
		changes: controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(
			prometheus.CounterOpts{Subsystem: subsystem, Name: "changes", Help: "Writes of EndpointSlices."}, []string{"operation"})),
		added:     histogram("endpoints_added_per_sync", "Endpoints that a sync added.", 2),
		updated:   histogram("endpoints_updated_per_sync", "Endpoints that a sync changed.", 2),
		removed:   histogram("endpoints_removed_per_sync", "Endpoints that a sync removed.", 2),
		skipped:   histogram("addresses_skipped_per_sync", "Addresses that a sync did not mirror.", 2),
		took:      histogram("endpoints_sync_duration", "How long a sync takes, in seconds.", 0.001),
		endpoints: gauge("endpoints_desired", "Endpoints that are mirrored."),
		slices:    gauge("num_endpoint_slices", "EndpointSlices that they are in."),
		ideal:     gauge("desired_endpoint_slices", "EndpointSlices that they would fit in."),
		booked:    map[types.NamespacedName]amount{},
	}, failure
}

// tell records a plan for some Endpoints.
func (m *meters) tell(key types.NamespacedName, p plan) {
	m.skipped.WithLabelValues().Observe(float64(p.skipped))
	m.added.WithLabelValues().Observe(float64(p.added))
	m.updated.WithLabelValues().Observe(float64(p.updated))
	m.removed.WithLabelValues().Observe(float64(p.removed))
	m.book(key, p.sum)
}

// book updates the sums over all Endpoints, without those that are no longer mirrored.
func (m *meters) book(key types.NamespacedName, now amount) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.booked[key]
	if now == (amount{}) {
		delete(m.booked, key)
	} else {
		m.booked[key] = now
	}
	m.sum.endpoints += now.endpoints - was.endpoints
	m.sum.slices += now.slices - was.slices
	m.sum.ideal += now.ideal - was.ideal
	m.endpoints.WithLabelValues().Set(float64(m.sum.endpoints))
	m.slices.WithLabelValues().Set(float64(m.sum.slices))
	m.ideal.WithLabelValues().Set(float64(m.sum.ideal))
}
