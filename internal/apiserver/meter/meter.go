// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package meter collects the server's metrics, under the names, labels and buckets of kube-apiserver's stable metrics.
//
// A [Meter] has the metrics of one server. Metrics of every request use series that are looked up once for each kind of
// request ([Meter.Request], [Meter.Admission]). Values that exist elsewhere are read at collection, by the functions of
// [Sources]. Clients cannot invent labels: a request counts for its resource only after the server has found the
// resource.
package meter

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Component is the value of the label component for resources.
const Component = "apiserver"

// Meter has all metrics of a server. It is safe for concurrent use.
type Meter struct {
	libraries prometheus.Gatherer // nil: none

	started  time.Time
	registry *prometheus.Registry
	slis     *prometheus.Registry

	total                *prometheus.CounterVec
	duration, sli, sizes *prometheus.HistogramVec
	running, deprecated  *prometheus.GaugeVec
	terminations         *prometheus.CounterVec
	tls                  prometheus.Counter
	certificates         prometheus.Histogram
	step, controller     *prometheus.HistogramVec
	resettable           []interface{ Reset() }

	requests atomic.Pointer[sync.Map] // Request → *series
	long     sync.Map                 // Request without code → prometheus.Gauge
	resets   atomic.Int64
}

var requestLabels = []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}

// New makes the metrics of a server that started at started.
func New(started time.Time, sources Sources) *Meter {
	m := &Meter{
		started: started, registry: prometheus.NewRegistry(), slis: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total",
			Help: "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_duration_seconds",
			Help:    "[STABLE] Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}),
		sli: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_request_sli_duration_seconds",
			Help:    "[ALPHA] Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, requestLabels),
		sizes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_response_sizes",
			Help:    "[STABLE] Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7),
		}, requestLabels),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_longrunning_requests",
			Help: "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way.",
		}, requestLabels),
		deprecated: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "apiserver_requested_deprecated_apis",
			Help: "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
		}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		terminations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_terminations_total",
			Help: "[ALPHA] Number of requests which apiserver terminated in self-defense.",
		}, append(requestLabels[:len(requestLabels):len(requestLabels)], "code")),
		tls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_tls_handshake_errors_total", Help: "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
		}),
		certificates: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "apiserver_client_certificate_expiration_seconds",
			Help:    "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			Buckets: []float64{0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 15552000, 31104000},
		}),
		step: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_step_admission_duration_seconds",
			Help:    "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
			Buckets: admissionBuckets,
		}, []string{"type", "operation", "rejected"}),
		controller: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "apiserver_admission_controller_admission_duration_seconds",
			Help:    "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
			Buckets: admissionBuckets,
		}, []string{"name", "type", "operation", "rejected"}),
	}
	m.requests.Store(&sync.Map{})
	m.libraries = sources.Libraries
	m.resettable = []interface{ Reset() }{m.total, m.duration, m.sli, m.sizes, m.deprecated, m.terminations, m.step, m.controller}
	m.registry.MustRegister(m.total, m.duration, m.sli, m.sizes, m.running, m.deprecated, m.terminations, m.tls, m.certificates, m.step,
		m.controller,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{sources: sources})
	m.slis.MustRegister(&healthCollector{health: sources.Health})
	return m
}

// Request is one kind of request, identified by its labels.
type Request struct {
	Verb, DryRun, Group, Version, Resource, Subresource, Scope, Component string
	Code                                                                  int
}

// series has the metrics of one kind of request, looked up once.
type series struct {
	total                prometheus.Counter
	duration, sli, sizes prometheus.Observer // sli: nil for dry runs; sizes: nil unless objects are read
}

func (m *Meter) series(k Request) *series {
	all := m.requests.Load()
	if v, ok := all.Load(k); ok {
		return v.(*series)
	}
	s := &series{
		total: m.total.WithLabelValues(k.Verb, k.DryRun, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component,
			strconv.Itoa(k.Code)),
		duration: m.duration.WithLabelValues(k.Verb, k.DryRun, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component),
	}
	if k.DryRun == "" {
		s.sli = m.sli.WithLabelValues(k.Verb, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component)
	}
	if k.Verb == "GET" || k.Verb == "LIST" || k.Verb == "WATCH" || k.Resource == "" {
		s.sizes = m.sizes.WithLabelValues(k.Verb, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component)
	}
	v, _ := all.LoadOrStore(k, s)
	return v.(*series)
}

// Request counts a request and the bytes of its response.
func (m *Meter) Request(k Request, took time.Duration, bytes int64) {
	s := m.series(k)
	s.total.Inc()
	s.duration.Observe(took.Seconds())
	if s.sli != nil {
		s.sli.Observe(took.Seconds())
	}
	if s.sizes != nil {
		s.sizes.Observe(float64(bytes))
	}
}

// Dropped counts a request that was rejected because there were too many.
func (m *Meter) Dropped(k Request) {
	k.Code = http.StatusTooManyRequests
	m.series(k).total.Inc()
	m.terminations.WithLabelValues(k.Verb, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component, strconv.Itoa(k.Code)).Inc()
}

// Deprecated records a request for a deprecated version.
func (m *Meter) Deprecated(group, version, resource, subresource string) {
	m.deprecated.WithLabelValues(group, version, resource, subresource, "").Set(1)
}

// Long counts a long-running request until out is called.
func (m *Meter) Long(k Request) (out func()) {
	k.DryRun, k.Code = "", 0
	v, ok := m.long.Load(k)
	if !ok {
		v, _ = m.long.LoadOrStore(k, m.running.WithLabelValues(k.Verb, k.Group, k.Version, k.Resource, k.Subresource, k.Scope, k.Component))
	}
	g := v.(prometheus.Gauge)
	g.Inc()
	return g.Dec
}

// Handshake counts a failed TLS handshake.
func (m *Meter) Handshake() { m.tls.Inc() }

// Certificate records the remaining validity of a client certificate that authenticated a request.
func (m *Meter) Certificate(left time.Duration) { m.certificates.Observe(left.Seconds()) }

// Metrics serves /metrics; DELETE resets the metrics.
func (m *Meter) Metrics(w http.ResponseWriter, r *http.Request) {
	m.serve(w, r, withLibraries{m.registry, m.libraries})
}

// Registry registers additional metrics, which /metrics shows beside the meter's own.
func (m *Meter) Registry() prometheus.Registerer { return m.registry }

// SLIs serves /metrics/slis: the results of the health checks.
func (m *Meter) SLIs(w http.ResponseWriter, r *http.Request) { m.serve(w, r, m.slis) }

func (m *Meter) serve(w http.ResponseWriter, r *http.Request, of prometheus.Gatherer) {
	if r.Method == http.MethodDelete {
		if of != prometheus.Gatherer(m.slis) {
			m.reset()
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("metrics reset\n"))
		return
	}
	promhttp.HandlerFor(of, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ProcessStartTime: m.started}).ServeHTTP(w, r)
}

// reset resets the metrics of requests and admission. Series in use are not visible until they are looked up again.
func (m *Meter) reset() {
	for _, v := range m.resettable {
		v.Reset()
	}
	m.requests.Store(&sync.Map{})
	m.resets.Add(1)
}
