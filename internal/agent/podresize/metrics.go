// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// The values of the label reason_detail of infeasible resizes, which are upstream's.
const (
	cpusAssigned   = "guaranteed_pod_cpu_manager_static_policy"
	memoryAssigned = "guaranteed_pod_memory_manager_static_policy"
)

// Metrics are kubelet's metrics of resizes.
type Metrics struct {
	requested  *prometheus.CounterVec
	took       *prometheus.HistogramVec
	infeasible *prometheus.CounterVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		requested: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "container_requested_resizes_total",
			Help: "Number of requested resizes of containers, each resource and each of requests and limits by itself, by what becomes of it.",
		}, []string{"resource", "requirement", "operation"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "pod_resize_duration_milliseconds", Help: "Duration in milliseconds to actuate a pod resize",
			Buckets: []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000},
		}, []string{"success"}),
		infeasible: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "pod_infeasible_resizes_total", Help: "Number of infeasible resizes for pods.",
		}, []string{"reason_detail"}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requested, m.took, m.infeasible}
}

// Requested counts what a newer definition of a pod changes. Kubelet counts neither pod-level resources nor the absence of a change.
func (m *Metrics) Requested(old, pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			before := podspec.Container(old, list[i].Name)
			if before == nil {
				continue
			}
			for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
				m.request(name, "requests", before.Resources.Requests, list[i].Resources.Requests)
				m.request(name, "limits", before.Resources.Limits, list[i].Resources.Limits)
			}
		}
	}
}

func (m *Metrics) request(name corev1.ResourceName, requirement string, old, now corev1.ResourceList) {
	if op := operation(old[name], now[name]); op != "" {
		m.requested.WithLabelValues(string(name), requirement, op).Inc()
	}
}

// operation is upstream's word for a change; empty: there is none.
func operation(old, now resource.Quantity) string {
	switch order := now.Cmp(old); {
	case order == 0:
		return ""
	case now.IsZero():
		return "remove"
	case old.IsZero():
		return "add"
	case order < 0:
		return "decrease"
	}
	return "increase"
}

func (m *Metrics) actuated(took time.Duration, success bool) {
	m.took.WithLabelValues(strconv.FormatBool(success)).Observe(float64(took.Milliseconds()))
}
