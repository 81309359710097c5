// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/images"
)

// Metrics are what a node counts, under kubelet's names, with the process's own.
type Metrics struct {
	registry  *prometheus.Registry
	evictions *prometheus.CounterVec
	images    *images.Metrics
}

// NewMetrics makes the metrics of a node.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), images: images.NewMetrics(), evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
		Subsystem: "kubelet", Name: "evictions", Help: "Pods that were evicted, by the signal for which they were.",
	}, []string{"eviction_signal"})}
	m.registry.MustRegister(m.evictions)
	m.registry.MustRegister(m.images.Collectors()...)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Gatherer is what there is to read of them.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Spec is a pod's newest definition; nil: the node has no such pod.
func (n *node) Spec(uid types.UID) *corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.workers[uid]; w != nil {
		return w.spec
	}
	return nil
}
