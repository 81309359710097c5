// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// State provides the sizes of a scheduler's queue and cache.
type State interface {
	// Pending returns the number of pods in each part of the queue, Rejected the number of a profile's waiting pods by the plug-in that
	// rejected them.
	Pending() map[string]int
	Rejected() map[Rejector]int
	// InFlight returns the number of pods in progress, and the number of events of each kind that are kept for them.
	InFlight() (pods int, events map[string]int)
	// Cached returns the number of nodes, pods and assumed pods in the cache.
	Cached() (nodes, pods, assumed int)
}

// Rejector is a plug-in of a profile.
type Rejector struct{ Plugin, Profile string }

// state is a collector that reads a scheduler's State.
type state struct {
	mu sync.Mutex
	of State // nil while no scheduler runs
}

var (
	pendingPods = prometheus.NewDesc("scheduler_pending_pods", "Pending pods, by part of the queue.", []string{"queue"}, nil)
	queued      = prometheus.NewDesc("scheduler_queued_entities", "Pending entities, by part of the queue.",
		[]string{"queue", "type"}, nil)
	rejectedPods = prometheus.NewDesc("scheduler_unschedulable_pods",
		"Pods that wait, by the plug-ins that rejected them; a pod counts for each of them.", []string{"plugin", "profile"}, nil)
	inFlight = prometheus.NewDesc("scheduler_inflight_events", "Pods in flight (PodPopped), and events recorded for them.",
		[]string{"event"}, nil)
	cacheSize = prometheus.NewDesc("scheduler_cache_size", "Nodes, pods and assumed pods in the scheduler's cache.", []string{"type"}, nil)
)

// Attach lets the metrics read a running scheduler's sizes, until detach is called.
func (m *Metrics) Attach(s State) (detach func()) {
	if m == nil {
		return func() {}
	}
	m.state.mu.Lock()
	defer m.state.mu.Unlock()
	m.state.of = s
	return func() {
		m.state.mu.Lock()
		defer m.state.mu.Unlock()
		if m.state.of == s {
			m.state.of = nil
		}
	}
}

// Describe implements [prometheus.Collector].
func (s *state) Describe(c chan<- *prometheus.Desc) {
	c <- pendingPods
	c <- queued
	c <- rejectedPods
	c <- inFlight
	c <- cacheSize
}

// Collect implements [prometheus.Collector].
func (s *state) Collect(c chan<- prometheus.Metric) {
	s.mu.Lock()
	of := s.of
	s.mu.Unlock()
	if of == nil {
		return
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for part, n := range of.Pending() {
		gauge(pendingPods, n, part)
		gauge(queued, n, part, "pod")
	}
	for r, n := range of.Rejected() {
		gauge(rejectedPods, n, r.Plugin, r.Profile)
	}
	tried, events := of.InFlight()
	gauge(inFlight, tried, "PodPopped")
	for event, n := range events {
		gauge(inFlight, n, event)
	}
	nodes, pods, assumed := of.Cached()
	gauge(cacheSize, nodes, "nodes")
	gauge(cacheSize, pods, "pods")
	gauge(cacheSize, assumed, "assumed_pods")
}
