// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package sample writes metrics and events in all ways that the generator of the reference follows.
package sample

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

var direct = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "direct_total", Help: "A literal."}, []string{"code"})

func gauges() []prometheus.Gauge {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: "sub", Name: name, Help: help})
	}
	return []prometheus.Gauge{gauge("by_parameter", "By a parameter."), gauge("by_another", "By another call.")}
}

func histograms() (out []prometheus.Collector) {
	common := []string{"one"}
	for _, f := range []struct {
		name, help string
		labels     []string
	}{{"ranged_seconds", "By a range statement.", []string{"two"}}} {
		out = append(out, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.name, Help: f.help}, append(common[:1:1], f.labels...)))
	}
	return out
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("computed_"+name, help, labels, nil)
}

var (
	now    = describe("now", "Computed.", "name")
	spread = describe("spread", "By a helper.", "name")
)

func collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(now, prometheus.GaugeValue, 1, "a")
	to <- prometheus.MustNewConstHistogram(spread, 1, 1, nil, "a")
}

type plan struct{ level, reason, message string }

type writer struct {
	events record.EventRecorder
	warn   func(pod *corev1.Pod, reason, message string)
}

var table = []struct{ reason, prefix string }{{"FromTable", "By an index: "}}

func newWriter(r record.EventRecorder) *writer {
	w := &writer{events: r}
	w.warn = func(pod *corev1.Pod, reason, message string) { r.Event(pod, corev1.EventTypeWarning, reason, message) }
	return w
}

func (w *writer) write(pod *corev1.Pod, plans []plan) {
	w.events.Eventf(pod, corev1.EventTypeNormal, "Direct", "A literal of %s", pod.Name)
	for _, p := range plans {
		w.events.Event(pod, p.level, p.reason, p.message)
	}
	w.warn(pod, "CalledBack", "By a function in a field")
	r := &table[len(plans)]
	w.events.Event(pod, corev1.EventTypeWarning, r.reason, r.prefix+pod.Name)
}

func plans(err error) []plan {
	return []plan{{corev1.EventTypeWarning, "Planned", "By a field: " + err.Error()}}
}

var _ = []any{direct, gauges, histograms, collect, newWriter, (*writer).write, plans, errors.New}
