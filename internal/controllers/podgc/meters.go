// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// reason is the metrics' label for why a pod is removed.
type reason string

const (
	terminated   reason = "terminated"
	orphaned     reason = "orphaned"
	outOfService reason = "out-of-service"
	unscheduled  reason = "unscheduled"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct{ deleted, failed *prometheus.CounterVec }

func newMeters(d *controllers.Deps) (*meters, error) {
	var failure error
	counter := func(name, help string) *prometheus.CounterVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(
			prometheus.CounterOpts{Subsystem: "pod_gc_collector", Name: name, Help: help}, []string{"namespace", "reason"}))
	}
	return &meters{
		deleted: counter("force_delete_pods_total", "Pods deleted without grace period."),
		failed:  counter("force_delete_pod_errors_total", "Failed deletions of pods without grace period."),
	}, failure
}
