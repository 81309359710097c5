// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Labels for a sync's action.
const (
	actionReconciling = "reconciling"
	actionTracking    = "tracking"
	actionCreated     = "pods_created"
	actionDeleted     = "pods_deleted"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	duration                                                             *prometheus.HistogramVec
	syncs, finished, foreigners, pods, rulings, held, indexes, creations *prometheus.CounterVec
}

func newMeters(d *controllers.Deps) (*meters, error) {
	m := &meters{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "job_controller", Name: "job_sync_duration_seconds", Help: "Duration of a sync of a job.",
			Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
		syncs:      counter("job_syncs_total", "Syncs of jobs.", "completion_mode", "result", "action"),
		finished:   counter("jobs_finished_total", "Finished jobs.", "completion_mode", "result", "reason"),
		foreigners: counter("jobs_by_external_controller_total", "Jobs managed by another controller.", "controller_name"),
		pods:       counter("job_pods_finished_total", "Finished pods that were counted.", "completion_mode", "result"),
		rulings: counter("pod_failures_handled_by_failure_policy_total",
			"Failed pods matched by a rule of the pod failure policy, by its action.", "action"),
		held: counter("terminated_pods_tracking_finalizer_total",
			"Terminated pods that got, or lost, the finalizer batch.kubernetes.io/job-tracking.", "event"),
		indexes:   counter("job_finished_indexes_total", "Finished indexes.", "status", "backoffLimit"),
		creations: counter("job_pods_creation_total", "Created pods, by reason.", "reason", "status"),
	}
	all := []prometheus.Collector{m.duration}
	for _, c := range []**prometheus.CounterVec{&m.syncs, &m.finished, &m.foreigners, &m.pods, &m.rulings, &m.held, &m.indexes, &m.creations} {
		all = append(all, *c)
	}
	kept, err := d.Metrics.Register(all...)
	if err != nil {
		return nil, err
	}
	m.duration, _ = kept[0].(*prometheus.HistogramVec)
	for i, c := range []**prometheus.CounterVec{&m.syncs, &m.finished, &m.foreigners, &m.pods, &m.rulings, &m.held, &m.indexes, &m.creations} {
		*c, _ = kept[i+1].(*prometheus.CounterVec)
	}
	return m, nil
}

func counter(name, help string, names ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "job_controller", Name: name, Help: help}, names)
}

func mode(j *batchv1.Job) string {
	if j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion {
		return string(batchv1.IndexedCompletion)
	}
	return string(batchv1.NonIndexedCompletion)
}

func (m *meters) synced(j *batchv1.Job, action string, err error, took time.Duration) {
	result := "success"
	if err != nil {
		result = "error"
	}
	m.duration.WithLabelValues(mode(j), result, action).Observe(took.Seconds())
	m.syncs.WithLabelValues(mode(j), result, action).Inc()
}

func (m *meters) foreign(controller string) { m.foreigners.WithLabelValues(controller).Inc() }

// counted records the difference between a status and the one before.
func (m *meters) counted(before, updated *batchv1.Job, over *batchv1.JobCondition) {
	add(m.pods, int(updated.Status.Failed-before.Status.Failed), mode(updated), "failed")
	add(m.pods, int(updated.Status.Succeeded-before.Status.Succeeded), mode(updated), "succeeded")
	if mode(updated) == string(batchv1.IndexedCompletion) {
		limit := "global"
		if updated.Spec.BackoffLimitPerIndex != nil {
			limit = "perIndex"
		}
		add(m.indexes, int(updated.Status.Succeeded-before.Status.Succeeded), "succeeded", limit)
		if updated.Status.FailedIndexes != nil && updated.Spec.Completions != nil {
			lost := parseIndexes(*updated.Status.FailedIndexes, int(*updated.Spec.Completions)).total()
			if before.Status.FailedIndexes != nil {
				lost -= parseIndexes(*before.Status.FailedIndexes, int(*updated.Spec.Completions)).total()
			}
			add(m.indexes, lost, "failed", limit)
		}
	}
	if over != nil {
		result := "succeeded"
		if over.Type == batchv1.JobFailed {
			result = "failed"
		}
		m.finished.WithLabelValues(mode(updated), result, over.Reason).Inc()
	}
}

// add counts n more. It ignores a negative n: a job may be cut short.
func add(c *prometheus.CounterVec, n int, values ...string) {
	if n > 0 {
		c.WithLabelValues(values...).Add(float64(n))
	}
}

func (m *meters) ruled(by map[batchv1.PodFailurePolicyAction]int) {
	for action, n := range by {
		add(m.rulings, n, string(action))
	}
}

// tracked records finished pods that got or lost the finalizer.
func (m *meters) tracked(before, updated *corev1.Pod) {
	was := before != nil && workload.Finished(before) && tracked(before)
	is := updated != nil && workload.Finished(updated) && tracked(updated)
	switch {
	case is && !was:
		m.held.WithLabelValues("add").Inc()
	case was && !is:
		m.held.WithLabelValues("delete").Inc()
	}
}

func (m *meters) created(reason string, made int, err error) {
	add(m.creations, made, reason, "succeeded")
	if err != nil {
		m.creations.WithLabelValues(reason, "failed").Inc()
	}
}
