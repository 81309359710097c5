// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// metrics are the server's own, under the names that kube-apiserver gives them.
type metrics struct {
	registry *prometheus.Registry
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	series   sync.Map // seriesKey → *series
}

type seriesKey struct {
	verb, group, version, resource, subresource, scope string
	code                                               int
}

// series is what one kind of request counts into, looked up once.
type series struct {
	total    prometheus.Counter
	duration prometheus.Observer
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_request_total", Help: "Requests answered, by verb, resource and code.",
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_request_duration_seconds", Help: "How long answers took, in seconds; watches are not counted.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.5, 2, 3, 5, 10, 15, 20, 30, 60},
		}, []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}),
	}
	m.registry.MustRegister(m.total, m.duration, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observe(i *requestinfo.Info, code int, took time.Duration) {
	k := seriesKey{verb: verbLabel(i), code: code}
	if i.IsResourceRequest {
		// what is not served counts as one, so that paths that clients make up make no series
		if code != http.StatusNotFound || i.Name != "" {
			k.group, k.version, k.resource, k.subresource = i.APIGroup, i.APIVersion, i.Resource, i.Subresource
		}
		switch {
		case i.Name != "":
			k.scope = "resource"
		case i.Namespace != "":
			k.scope = "namespace"
		default:
			k.scope = "cluster"
		}
	}
	v, ok := m.series.Load(k)
	if !ok {
		v, _ = m.series.LoadOrStore(k, &series{
			total:    m.total.WithLabelValues(k.verb, "", k.group, k.version, k.resource, k.subresource, k.scope, "apiserver", strconv.Itoa(code)),
			duration: m.duration.WithLabelValues(k.verb, "", k.group, k.version, k.resource, k.subresource, k.scope, "apiserver"),
		})
	}
	s := v.(*series)
	s.total.Inc()
	if k.verb != "WATCH" && k.verb != "CONNECT" {
		s.duration.Observe(took.Seconds())
	}
}

func verbLabel(i *requestinfo.Info) string {
	switch i.Verb {
	case "get":
		if longRunning(i) {
			return "CONNECT"
		}
		return "GET"
	case "list":
		return "LIST"
	case "watch":
		return "WATCH"
	case "create", "post":
		return "POST"
	case "update", "put":
		return "PUT"
	case "patch":
		return "PATCH"
	case "delete":
		return "DELETE"
	case "deletecollection":
		return "DELETECOLLECTION"
	}
	return "other"
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// recorder remembers the code of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the code.
func (w *recorder) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write sends a part of the body.
func (w *recorder) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Flush sends what is buffered.
func (w *recorder) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack takes the connection over, for protocols that upgrade it.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.code == 0 {
		w.code = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

func (w *recorder) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
