// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	syncs, computations       *prometheus.CounterVec
	syncTimes, computingTimes *prometheus.HistogramVec
	autoscalers               prometheus.Gauge
	desired                   *prometheus.GaugeVec
	stale                     *prometheus.CounterVec
}

func newMeters(d *controllers.Deps) (*meters, error) {
	const subsystem = "horizontal_pod_autoscaler_controller"
	var failure error
	sync, computation := []string{"action", "error"}, []string{"action", "error", "metric_type"}
	counter := func(name, help string, of []string) *prometheus.CounterVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: subsystem, Name: name,
			Help: help}, of))
	}
	times := func(name, help string, of []string) *prometheus.HistogramVec {
		return controllers.Keep(d.Metrics, &failure, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: subsystem, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, of))
	}
	m := &meters{
		syncs:          counter("reconciliations_total", "Evaluations of autoscalers.", sync),
		syncTimes:      times("reconciliation_duration_seconds", "Duration of an evaluation.", sync),
		computations:   counter("metric_computation_total", "Evaluations of metrics.", computation),
		computingTimes: times("metric_computation_duration_seconds", "Time from the question for a metric to its evaluation.", computation),
		autoscalers: controllers.Keep(d.Metrics, &failure, prometheus.NewGauge(prometheus.GaugeOpts{
			Subsystem: subsystem, Name: "num_horizontal_pod_autoscalers", Help: "Autoscalers.",
		})),
		desired: controllers.Keep(d.Metrics, &failure, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: subsystem, Name: "desired_replicas", Help: "Replicas that an autoscaler's target should have.",
		}, []string{"namespace", "hpa_name"})),
		stale: counter("stale_sync_skips_total", "Evaluations that waited for the cache.", []string{"group", "resource"}),
	}
	m.autoscalers.Set(0) // an incarnation counts anew
	return m, failure
}

// failure is the label of an error.
func failure(err error) string {
	switch {
	case err == nil:
		return "none"
	case errors.Is(err, calculator.ErrSpec):
		return "spec"
	}
	return "internal"
}

// action is the label of a change of replicas.
func action(before, after int32) string {
	switch {
	case after > before:
		return "scale_up"
	case after < before:
		return "scale_down"
	}
	return "none"
}

// evaluated counts an evaluation that took so long.
func (m *meters) evaluated(did string, err error, took time.Duration) {
	m.syncs.WithLabelValues(did, failure(err)).Inc()
	m.syncTimes.WithLabelValues(did, failure(err)).Observe(took.Seconds())
}

// computed counts what each metric proposed.
func (m *meters) computed(hpa *autoscalingv2.HorizontalPodAutoscaler, estimates []calculator.Estimate, readings []reading) {
	for i, p := range estimates {
		did := "none"
		if p.Err == nil {
			did = action(hpa.Status.CurrentReplicas, p.Replicas)
		}
		of := []string{did, failure(p.Err), string(hpa.Spec.Metrics[i].Type)}
		m.computations.WithLabelValues(of...).Inc()
		m.computingTimes.WithLabelValues(of...).Observe(readings[i].took.Seconds())
	}
}
