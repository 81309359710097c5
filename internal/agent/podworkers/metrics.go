// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Metrics are kubelet's metrics of how pods and containers start.
type Metrics struct {
	seen, rounds     prometheus.ObserverVec
	total, sli       prometheus.Observer
	written          prometheus.Observer
	pods, podErrors  prometheus.Counter
	users, userErrs  prometheus.Counter // pods in user namespaces
	containers       *prometheus.CounterVec
	containersErrors *prometheus.CounterVec
	terminated       *prometheus.CounterVec
	all              []prometheus.Collector
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	buckets := []float64{
		0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600,
	}
	m := &Metrics{}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Subsystem: "kubelet", Name: name, Help: help, Buckets: buckets}, labels)
		m.all = append(m.all, h)
		return h
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
		m.all = append(m.all, c)
		return c
	}
	m.seen = histogram("pod_start_duration_seconds",
		"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", buckets)
	m.rounds = histogram("pod_worker_duration_seconds",
		"Duration in seconds of a worker's round for a pod, by operation type: create for the first one, else sync", prometheus.DefBuckets,
		"operation_type")
	m.total = histogram("pod_start_total_duration_seconds",
		"Duration in seconds from a pod's creation to the start of all its containers, with image pulls and init containers", buckets,
	).WithLabelValues()
	m.sli = histogram("pod_start_sli_duration_seconds",
		"Duration in seconds from a pod's creation to the start of all its containers, without image pulls and init containers", buckets,
	).WithLabelValues()
	m.pods = counter("started_pods_total", "Cumulative number of pods started").WithLabelValues()
	m.podErrors = counter("started_pods_errors_total", "Cumulative number of errors when starting pods").WithLabelValues()
	m.users = counter("started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started").WithLabelValues()
	m.userErrs = counter("started_user_namespaced_pods_errors_total",
		"Cumulative number of errors when starting pods with user namespaces").WithLabelValues()
	m.written = histogram("pod_status_sync_duration_seconds",
		"Duration in seconds to sync a pod status update, from the detection of a change until the API server has it",
		[]float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60}).WithLabelValues()
	m.containers = counter("started_containers_total", "Cumulative number of containers started", "container_type")
	m.containersErrors = counter("started_containers_errors_total", "Cumulative number of errors when starting containers",
		"container_type", "code")
	m.terminated = counter("terminated_containers_total", "Cumulative number of container terminations.",
		"container_type", "exit_code", "reason")
	return m
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector { return m.all }

// sandbox counts the creation of a pod's sandbox.
func (m *Metrics) sandbox(pod *corev1.Pod, err error) {
	if m == nil {
		return
	}
	if h := pod.Spec.HostUsers; h != nil && !*h {
		m.users.Inc()
		if err != nil {
			m.userErrs.Inc()
		}
	}
	m.pods.Inc()
	m.containers.WithLabelValues("pod_sandbox").Inc()
	if err != nil {
		m.podErrors.Inc()
		m.containersErrors.WithLabelValues("pod_sandbox", "CreatePodSandboxError").Inc()
	}
}

// container counts the start of a container, which failed for the reason; empty: it did not.
func (m *Metrics) container(pod *corev1.Pod, name, reason string) {
	if m == nil {
		return
	}
	kind := "container"
	for _, c := range pod.Spec.InitContainers {
		if c.Name == name {
			kind = "init_container"
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if c.Name == name {
			kind = "ephemeral_container"
		}
	}
	m.containers.WithLabelValues(kind).Inc()
	if reason != "" {
		m.containersErrors.WithLabelValues(kind, reason).Inc()
	}
}

// wrote counts the containers that ended between two statuses of a pod.
func (m *Metrics) wrote(before, now *corev1.PodStatus) {
	if m == nil {
		return
	}
	for kind, lists := range map[string][2][]corev1.ContainerStatus{
		"init_container":      {before.InitContainerStatuses, now.InitContainerStatuses},
		"container":           {before.ContainerStatuses, now.ContainerStatuses},
		"ephemeral_container": {before.EphemeralContainerStatuses, now.EphemeralContainerStatuses},
	} {
		for _, s := range lists[1] {
			had := func(b corev1.ContainerStatus) bool { return b.Name == s.Name && b.State.Terminated != nil }
			if t := s.State.Terminated; t != nil && !slices.ContainsFunc(lists[0], had) {
				m.terminated.WithLabelValues(kind, strconv.Itoa(int(t.ExitCode)), t.Reason).Inc()
			}
		}
	}
}

// synced times a write of a pod's status, since the status was new.
func (m *Metrics) synced(took time.Duration) {
	if m != nil {
		m.written.Observe(took.Seconds())
	}
}

// round times a round of a worker.
func (m *Metrics) round(first bool, took time.Duration) {
	if m == nil {
		return
	}
	operation := "sync"
	if first {
		operation = "create"
	}
	m.rounds.With(prometheus.Labels{"operation_type": operation}).Observe(took.Seconds())
}

// startTimes are the times of a pod's start. The worker's goroutine uses them.
type startTimes struct {
	seen   time.Time
	pulled time.Duration
	done   bool
}

// running notes the written status of a pod, nil: there is none, and times the pod's start once all its containers run. Pods that a former
// process started are done from the beginning.
func (m *Metrics) running(t *startTimes, pod *corev1.Pod, status *corev1.PodStatus, now time.Time) {
	if m == nil || t.done || pod == nil || status == nil {
		return
	}
	if status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed {
		t.done = true
	}
	if status.Phase != corev1.PodRunning || slices.ContainsFunc(status.ContainerStatuses, waits) {
		return
	}
	t.done = true
	var inits time.Duration
	for i := range status.InitContainerStatuses {
		if s := status.InitContainerStatuses[i].State.Terminated; s != nil {
			inits += s.FinishedAt.Sub(s.StartedAt.Time)
		}
	}
	total := now.Sub(pod.CreationTimestamp.Time)
	m.seen.With(nil).Observe(now.Sub(t.seen).Seconds())
	m.total.Observe(max(total, 0).Seconds())
	m.sli.Observe(max(total-t.pulled-inits, 0).Seconds())
}

func waits(c corev1.ContainerStatus) bool { return c.State.Waiting != nil }
