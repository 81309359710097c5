// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the control loops, under kube-controller-manager's names where it has them. The nil value measures nothing.
type Metrics struct {
	depth, managed  *prometheus.GaugeVec
	leading         *prometheus.GaugeVec
	queues          *queueTimes
	adds, retries   *prometheus.CounterVec
	waited, work    *prometheus.HistogramVec
	restarts, panic *prometheus.CounterVec
	registry        prometheus.Registerer
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	name, controller := []string{"name"}, []string{"controller"}
	m := &Metrics{
		registry: registry,
		depth:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth", Help: "Keys waiting in a work queue."}, name),
		adds:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_adds_total", Help: "Keys added to a work queue."}, name),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_retries_total", Help: "Keys put back after a failed sync."},
			name),
		queues: &queueTimes{of: map[string]timedQueue{}},
		waited: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_queue_duration_seconds", Help: "Time that a key waits in a work queue.",
			Buckets: prometheus.ExponentialBuckets(10e-9, 10, 10),
		}, name),
		work: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_work_duration_seconds", Help: "Duration of a sync.",
			Buckets: prometheus.ExponentialBuckets(10e-9, 10, 10),
		}, name),
		managed: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "running_managed_controllers", Help: "1 while a controller runs."}, name),
		leading: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leader_election_master_status",
			Help: "1 while this process holds the Lease."}, name),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mortise_controller_restarts_total",
			Help: "Restarts of a controller."}, controller),
		panic: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mortise_controller_panics_total", Help: "Panics of a controller."},
			controller),
	}
	for _, c := range []prometheus.Collector{m.depth, m.adds, m.retries, m.waited, m.work, m.queues, m.managed, m.leading, m.restarts,
		m.panic} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register controller metrics: %w", err)
		}
	}
	return m, nil
}

// Register registers a controller's own metrics and returns those to use, in the same order. Metrics that an earlier incarnation registered
// go on counting.
func (m *Metrics) Register(own ...prometheus.Collector) ([]prometheus.Collector, error) {
	if m == nil {
		return own, nil
	}
	for i, c := range own {
		err := m.registry.Register(c)
		var there prometheus.AlreadyRegisteredError
		switch {
		case errors.As(err, &there):
			own[i] = there.ExistingCollector
		case err != nil:
			return nil, fmt.Errorf("register a controller's metrics: %w", err)
		}
	}
	return own, nil
}

// Keep is Register for one metric. It joins an error to failure.
func Keep[C prometheus.Collector](m *Metrics, failure *error, own C) C {
	kept, err := m.Register(own)
	if err != nil {
		*failure = errors.Join(*failure, err)
		return own
	}
	c, ok := kept[0].(C)
	if !ok {
		*failure = errors.Join(*failure, fmt.Errorf("register a controller's metrics: %T is there already", kept[0]))
		return own
	}
	return c
}

// Leading records whether this process holds the Lease of a component.
func (m *Metrics) Leading(component string, holds bool) {
	if m == nil {
		return
	}
	m.leading.WithLabelValues(component).Set(map[bool]float64{true: 1}[holds])
}

func (m *Metrics) started(controller string) {
	if m != nil {
		m.managed.WithLabelValues(controller).Set(1)
	}
}

func (m *Metrics) stopped(controller string) {
	if m != nil {
		m.managed.WithLabelValues(controller).Set(0)
	}
}

func (m *Metrics) restarted(controller string, panicked bool) {
	if m == nil {
		return
	}
	m.restarts.WithLabelValues(controller).Inc()
	if panicked {
		m.panic.WithLabelValues(controller).Inc()
	}
}
