// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// Metrics are kubelet's metrics of probes, which it serves at /metrics/probes. Those of a pod end with its probes.
type Metrics struct {
	results *prometheus.CounterVec
	took    *prometheus.HistogramVec

	mu   sync.Mutex
	pods map[types.UID]types.NamespacedName
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "prober", Name: "probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "prober", Name: "probe_duration_seconds", Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
		pods: map[types.UID]types.NamespacedName{},
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.results, m.took}
}

// attempted counts an attempt. As with kubelet, only successful ones are timed, and those that could not be made do not count.
func (m *Metrics) attempted(in Instance, kind string, result Result, took time.Duration, err error) {
	if m == nil || err != nil {
		return
	}
	word := "failed"
	switch result {
	case Success, Warning:
		word = "successful"
		m.took.WithLabelValues(kind, in.Container.Name, in.Pod.Name, in.Pod.Namespace).Observe(took.Seconds())
	case Unknown:
		word = "unknown"
	}
	m.results.WithLabelValues(kind, word, in.Container.Name, in.Pod.Name, in.Pod.Namespace, string(in.Pod.UID)).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods[in.Pod.UID] = types.NamespacedName{Namespace: in.Pod.Namespace, Name: in.Pod.Name}
}

// forget drops the metrics of a pod.
func (m *Metrics) forget(uid types.UID) {
	if m == nil {
		return
	}
	m.mu.Lock()
	name, ok := m.pods[uid]
	delete(m.pods, uid)
	m.mu.Unlock()
	if ok {
		m.results.DeletePartialMatch(prometheus.Labels{"pod_uid": string(uid)})
		m.took.DeletePartialMatch(prometheus.Labels{"pod": name.Name, "namespace": name.Namespace})
	}
}
