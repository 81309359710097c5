// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// counts collects kubelet's counts of pods when the metrics are read.
type counts struct {
	of *podTable

	desired, active, mirrors, working, ephemeral, pending, ongoing *prometheus.Desc
}

// Counts returns the collector of kubelet's counts of a node's pods.
func Counts(m *Manager) prometheus.Collector { return countsOf(m.podTable) }

func countsOf(t *podTable) *counts {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kubelet_"+name, help, labels, nil)
	}
	return &counts{
		of: t,
		desired: desc("desired_pods",
			"The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", "static"),
		active: desc("active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. "+
			"static is true if the pod is not from the apiserver.", "static"),
		mirrors: desc("mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)"),
		working: desc("working_pods", "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, "+
			"orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration "+
			"or force deleted in the API and consumes resources that are not otherwise visible.", "lifecycle", "config", "static"),
		ephemeral: desc("managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet."),
		pending:   desc("pod_pending_resizes", "Number of pending resizes for pods.", "reason", "priority_bucket"),
		ongoing:   desc("pod_in_progress_resizes", "Number of in-progress resizes for pods."),
	}
}

// Describe implements [prometheus.Collector].
func (c *counts) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.desired, c.active, c.mirrors, c.working, c.ephemeral, c.pending, c.ongoing} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *counts) Collect(ch chan<- prometheus.Metric) {
	n := c.count()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, static := range []string{"", "true"} {
		gauge(c.desired, n.desired[static], static)
		gauge(c.active, n.active[static], static)
	}
	gauge(c.mirrors, n.active["true"])
	gauge(c.ephemeral, n.ephemeral)
	gauge(c.ongoing, n.ongoing)
	for _, lifecycle := range []string{"sync", "terminating", "terminated"} {
		for _, config := range []string{"desired", "orphan"} {
			for _, static := range []string{"", "true"} {
				gauge(c.working, n.working[[3]string{lifecycle, config, static}], lifecycle, config, static)
			}
		}
		gauge(c.working, n.working[[3]string{lifecycle, "runtime_only", "unknown"}], lifecycle, "runtime_only", "unknown")
	}
	for labels, value := range n.pending {
		gauge(c.pending, value, labels[0], labels[1])
	}
}

// numbers are the counts of pods.
type numbers struct {
	desired, active    map[string]float64    // by "true" for static pods
	working            map[[3]string]float64 // by lifecycle, config and static
	pending            map[[2]string]float64 // by reason and bucket of priorities
	ephemeral, ongoing float64
}

func (c *counts) count() numbers {
	t := c.of
	n := numbers{
		desired: map[string]float64{}, active: map[string]float64{}, working: map[[3]string]float64{}, pending: map[[2]string]float64{},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		static, config, lifecycle := "", "desired", "sync"
		switch {
		case w.spec == nil:
			static, config = "unknown", "runtime_only"
		case podspec.IsStatic(w.spec):
			static = "true"
		}
		if w.spec != nil && w.gone {
			config = "orphan"
		}
		ended := w.status != nil && !w.counted && (w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed)
		switch {
		case ended:
			lifecycle = "terminated"
		case w.spec == nil || w.gone || w.evicted != nil || w.spec.DeletionTimestamp != nil:
			lifecycle = "terminating"
		}
		n.working[[3]string{lifecycle, config, static}]++
		if config != "desired" {
			continue
		}
		n.desired[static]++
		if w.counted {
			n.active[static]++
		}
		n.ephemeral += float64(len(w.spec.Spec.EphemeralContainers))
		if w.status == nil {
			continue
		}
		for _, condition := range w.status.Conditions {
			switch condition.Type {
			case corev1.PodResizePending:
				n.pending[[2]string{strings.ToLower(condition.Reason), priorityBucket(w.spec)}]++
			case corev1.PodResizeInProgress:
				n.ongoing++
			}
		}
	}
	return n
}

// priorityBucket returns kubelet's class of a pod's priority.
func priorityBucket(pod *corev1.Pod) string {
	switch p := corev1helpers.PodPriority(pod); {
	case p >= 2_000_000_000:
		return "system-critical"
	case p >= 100_000:
		return "high"
	case p > 0:
		return "medium"
	case p == 0:
		return "normal"
	case p > -1000:
		return "low"
	}
	return "very-low"
}
