// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics has the scheduler's metrics, with kube-scheduler's names, labels and buckets.
//
// [Metrics] are those of the whole scheduler, [Profile] those of one scheduler name; both may be nil, and then measure nothing. The package
// looks up frequent counters beforehand. It computes the sizes of the queue and the cache when Prometheus collects the metrics
// ([Metrics.Attach]), not at each change.
package metrics

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	fwk "k8s.io/kube-scheduler/framework"
)

// Metrics are the metrics of a scheduler. Its methods may be called concurrently.
type Metrics struct {
	attempts, incoming        *prometheus.CounterVec
	entities                  *prometheus.CounterVec
	latency, points, plugins  *prometheus.HistogramVec
	sli, events, permit       *prometheus.HistogramVec
	hints, evicting           *prometheus.HistogramVec
	evictions, asked          *prometheus.CounterVec
	devices                   deviceMetrics
	algorithm, tries, victims prometheus.Histogram
	preemptions               prometheus.Counter
	goroutines                *prometheus.GaugeVec
	binding                   prometheus.Gauge
	first                     prometheus.Observer // of sli, for pods bound at the first attempt
	state                     state
}

// New creates the metrics and registers them.
func New(registry prometheus.Registerer) (*Metrics, error) {
	name := func(s string) string { return "scheduler_" + s }
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(n), Help: help}, labels)
	}
	times := func(n, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: buckets}, labels)
	}
	one := func(n, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: buckets})
	}
	long, short, fine := prometheus.ExponentialBuckets(0.001, 2, 15), prometheus.ExponentialBuckets(0.0001, 2, 12),
		prometheus.ExponentialBuckets(0.00001, 1.5, 20)
	m := &Metrics{
		attempts: counter("schedule_attempts_total", "Attempts to schedule pods, by their result.", "result", "profile"),
		latency: times("scheduling_attempt_duration_seconds", "How long an attempt to schedule a pod takes, with its binding.", long,
			"result", "profile"),
		algorithm: one("scheduling_algorithm_duration_seconds", "How long deciding on a node takes.", long),
		incoming:  counter("queue_incoming_pods_total", "Pods that entered a part of the queue, by event.", "queue", "event"),
		entities: counter("queue_incoming_entities_total", "Entities that entered a part of the queue, by event and type.", "queue",
			"event", "type"),
		hints: times("queueing_hint_execution_duration_seconds", "How long a plug-in takes to say whether an event may help a pod.", fine,
			"plugin", "event", "hint"),
		sli: times("pod_scheduling_sli_duration_seconds", "From a pod's first attempt to its binding, by how many attempts it took.",
			prometheus.ExponentialBuckets(0.01, 2, 20), "attempts"),
		tries: one("pod_scheduling_attempts", "How many attempts a pod takes that is scheduled.", prometheus.ExponentialBuckets(1, 2, 5)),
		points: times("framework_extension_point_duration_seconds", "How long all plug-ins of an extension point take for a pod.", short,
			"extension_point", "status", "profile"),
		plugins: times("plugin_execution_duration_seconds",
			"How long a plug-in takes at an extension point; of one attempt in ten, and of one node in sixteen.", fine, "plugin", "extension_point",
			"status"),
		victims: one("preemption_victims", "How many pods one preemption ends.", prometheus.ExponentialBuckets(1, 2, 7)),
		preemptions: prometheus.NewCounter(prometheus.CounterOpts{Name: name("preemption_attempts_total"),
			Help: "Attempts to make room by preemption."}),
		asked: counter("plugin_evaluation_total", "Number of evaluations of pods by plug-ins, in PreFilter, Filter, PreScore and Score.",
			"plugin", "extension_point", "profile"),
		devices:   newDeviceMetrics(),
		evictions: counter("preemption_goroutines_execution_total", "Preemptions whose victims were deleted, by result.", "result"),
		evicting: times("preemption_goroutines_duration_seconds", "How long ending the victims of a preemption takes.",
			prometheus.ExponentialBuckets(0.01, 2, 20), "result"),
		events: times("event_handling_duration_seconds", "How long taking over a change of the cluster takes.", short, "event"),
		permit: times("permit_wait_duration_seconds", "How long pods wait on Permit plug-ins.", long, "result"),
		goroutines: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name("goroutines"), Help: "Running goroutines, by operation."},
			[]string{"operation"}),
	}
	m.first, m.binding = m.sli.WithLabelValues("1"), m.goroutines.WithLabelValues("binding")
	for _, c := range append(m.devices.all(),
		m.attempts, m.latency, m.algorithm, m.incoming, m.sli, m.tries, m.points, m.plugins, m.victims, m.preemptions,
		m.events, m.permit, m.goroutines, m.entities, m.hints, m.evictions, m.evicting, m.asked, &m.state,
	) {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register scheduler metrics: %w", err)
		}
	}
	return m, nil
}

// Profile creates the metrics of one scheduler name.
func (m *Metrics) Profile(name string) *Profile {
	if m == nil {
		return nil
	}
	p := &Profile{all: m, name: name}
	for i, r := range results {
		p.attempts[i], p.latency[i] = m.attempts.WithLabelValues(r, name), m.latency.WithLabelValues(r, name)
	}
	for i, point := range pointNames {
		p.points[i] = m.points.WithLabelValues(point, fwk.Success.String(), name)
	}
	return p
}

// Incoming counts a pod that enters a part of the queue.
func (m *Metrics) Incoming(queue, event string) {
	if m != nil {
		m.incoming.WithLabelValues(queue, event).Inc()
		m.entities.WithLabelValues(queue, event, "pod").Inc()
	}
}

// Hinted records how long a plug-in's queueing hint took.
func (m *Metrics) Hinted(plugin, event string, hint fwk.QueueingHint, took time.Duration) {
	if m != nil {
		m.hints.WithLabelValues(plugin, event, hint.String()).Observe(took.Seconds())
	}
}

// Began returns the current time as the start of a measurement; the zero time if nothing is measured.
func (m *Metrics) Began() time.Time {
	if m == nil {
		return time.Time{}
	}
	return time.Now()
}

// Handled records how long the handling of an event took.
func (m *Metrics) Handled(event string, began time.Time) {
	if m != nil {
		m.events.WithLabelValues(event).Observe(time.Since(began).Seconds())
	}
}

// Preempted counts a preemption attempt.
func (m *Metrics) Preempted() {
	if m != nil {
		m.preemptions.Inc()
	}
}

// Ended records the number of victims of a preemption.
func (m *Metrics) Ended(victims int) {
	if m != nil {
		m.victims.Observe(float64(victims))
	}
}

// Evicted records the eviction of a preemption's victims.
func (m *Metrics) Evicted(ok bool, began time.Time) {
	if m == nil {
		return
	}
	result := "success"
	if !ok {
		result = "error"
	}
	m.evictions.WithLabelValues(result).Inc()
	m.evicting.WithLabelValues(result).Observe(time.Since(began).Seconds())
}

// Binding counts a pod in its binding cycle, until done is called.
func (m *Metrics) Binding() (done func()) {
	if m == nil {
		return func() {}
	}
	m.binding.Inc()
	return m.binding.Dec
}

// Result is the result of an attempt.
type Result int

// The results.
const (
	Scheduled Result = iota
	Unschedulable
	Error
	resultCount
)

var results = [resultCount]string{"scheduled", "unschedulable", "error"}

// Point is an extension point.
type Point int

// The measured extension points.
const (
	PreFilter Point = iota
	Filter
	PostFilter
	PreScore
	Score
	Reserve
	Unreserve
	Permit
	PreBindPreFlight
	PreBind
	Bind
	PostBind
	pointCount
)

var pointNames = [pointCount]string{
	"PreFilter", "Filter", "PostFilter", "PreScore", "Score", "Reserve", "Unreserve", "Permit", "PreBindPreFlight", "PreBind", "Bind",
	"PostBind",
}

// Profile is the metrics of one scheduler name. Its methods may be called concurrently.
type Profile struct {
	all  *Metrics
	name string

	attempts [resultCount]prometheus.Counter
	latency  [resultCount]prometheus.Observer
	points   [pointCount]prometheus.Observer // of success
	nodes    atomic.Uint32                   // one in sixteen of which is measured
}

// Began returns the current time as the start of a measurement; the zero time if nothing is measured.
func (p *Profile) Began() time.Time {
	if p == nil {
		return time.Time{}
	}
	return time.Now()
}

// Decided records a decision.
func (p *Profile) Decided(took time.Duration) {
	if p != nil {
		p.all.algorithm.Observe(took.Seconds())
	}
}

// Attempted records an attempt.
func (p *Profile) Attempted(r Result, took time.Duration) {
	if p != nil {
		p.attempts[r].Inc()
		p.latency[r].Observe(took.Seconds())
	}
}

// manyAttempts is the number of attempts from which on pods are counted together.
const manyAttempts = 15

// Bound records the time from a pod's first attempt to its binding.
func (p *Profile) Bound(attempts int, took time.Duration) {
	if p == nil {
		return
	}
	p.all.tries.Observe(float64(attempts))
	switch {
	case attempts == 1:
		p.all.first.Observe(took.Seconds())
	case attempts < manyAttempts:
		p.all.sli.WithLabelValues(strconv.Itoa(attempts)).Observe(took.Seconds())
	default:
		p.all.sli.WithLabelValues(strconv.Itoa(manyAttempts) + "+").Observe(took.Seconds())
	}
}

// Passed records an extension point.
func (p *Profile) Passed(at Point, s *fwk.Status, began time.Time) {
	switch {
	case p == nil:
	case s.IsSuccess():
		p.points[at].Observe(time.Since(began).Seconds())
	default:
		p.all.points.WithLabelValues(pointNames[at], s.Code().String(), p.name).Observe(time.Since(began).Seconds())
	}
}

// Waited records how long a pod waited for Permit plug-ins.
func (p *Profile) Waited(s *fwk.Status, began time.Time) {
	if p != nil {
		p.all.permit.WithLabelValues(s.Code().String()).Observe(time.Since(began).Seconds())
	}
}

// Samples reports whether an attempt measures each plug-in. The zero time tells [Profile.Ran] that it does not.
func (p *Profile) Samples(state fwk.CycleState) bool {
	return p != nil && state.ShouldRecordPluginMetrics()
}

// SamplesNode reports whether the metrics of a node are sampled; they are for one node in many.
func (p *Profile) SamplesNode(state fwk.CycleState) bool {
	return p.Samples(state) && p.nodes.Add(1)%16 == 1
}

// Begin returns the current time if sampled, else the zero time.
func Begin(sampled bool) time.Time {
	if !sampled {
		return time.Time{}
	}
	return time.Now()
}

// Ran records a plug-in's call unless began is the zero time.
func (p *Profile) Ran(plugin string, at Point, s *fwk.Status, began time.Time) {
	if p != nil && !began.IsZero() {
		p.all.plugins.WithLabelValues(plugin, pointNames[at], s.Code().String()).Observe(time.Since(began).Seconds())
	}
}
