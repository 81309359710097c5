// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/extension"
)

// extensionsPath serves the ledger to users with the right to get this path.
const extensionsPath = "/debug/extensions"

// showExtensions responds with the registered extensions, their state, and the catalogue of extension points.
func showExtensions(ledger *extension.Ledger, objects func() objectReader) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		view := extension.View{Extensions: []extension.Row{}, Points: extension.Points(), Effects: extension.Effects()}
		for _, e := range ledger.Snapshot() {
			row := e.Row()
			row.Affects = affectedBy(r.Context(), objects(), &row)
			view.Extensions = append(view.Extensions, row)
		}
		b, err := json.Marshal(&view)
		if err != nil {
			http.Error(w, "encode extensions: "+err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(b, '\n')) // the client may have left
	}
}

// counted collects the metrics of audit and of the ledger.
type counted struct{ server *Server }

var (
	auditEvents = prometheus.NewDesc("apiserver_audit_event_total",
		"[ALPHA] Counter of audit events generated and sent to the audit backend.", nil, nil)
	auditErrors = prometheus.NewDesc("apiserver_audit_error_total",
		"[ALPHA] Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.",
		[]string{"plugin"}, nil)
	auditLevels = prometheus.NewDesc("apiserver_audit_level_total", "[ALPHA] Counter of policy levels for audit events (1 per request).",
		[]string{"level"}, nil)
	auditRejected = prometheus.NewDesc("apiserver_audit_requests_rejected_total",
		"[ALPHA] Counter of apiserver requests rejected due to an error in audit logging backend.", nil, nil)

	extensionLabels = []string{"point", "name"}
	extensionCalls  = prometheus.NewDesc("mortise_extension_calls_total",
		"Calls of an extension, by result: ok, error, or refused by its open breaker.", append(extensionLabels, "result"), nil)
	extensionTook = prometheus.NewDesc("mortise_extension_call_duration_seconds", "Duration of calls of an extension.", extensionLabels, nil)
	extensionOpen = prometheus.NewDesc("mortise_extension_open", "1 while the breaker of an extension is open.", extensionLabels, nil)
	extensionEnds = prometheus.NewDesc("mortise_extension_certificate_expiration_timestamp_seconds",
		"Expiration of the last serving certificate of an extension.", extensionLabels, nil)
)

// Describe implements [prometheus.Collector].
func (c *counted) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{auditEvents, auditErrors, auditLevels, auditRejected, extensionCalls, extensionTook, extensionOpen,
		extensionEnds} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *counted) Collect(to chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	a := c.server.opts.Audit.Counts()
	count(auditEvents, a.Events())
	count(auditRejected, a.Rejected())
	a.Levels(func(level string, n int64) { count(auditLevels, n, level) })
	a.Errors(func(plugin string, n int64) { count(auditErrors, n, plugin) })
	for _, e := range c.server.opts.Ledger.Snapshot() {
		point, name := string(e.Point), e.Name
		count(extensionCalls, e.Calls-e.Failures, point, name, "ok")
		count(extensionCalls, e.Failures, point, name, "error")
		count(extensionCalls, e.Refused, point, name, "refused")
		open := 0.0
		if e.State == extension.Open {
			open = 1
		}
		to <- prometheus.MustNewConstMetric(extensionOpen, prometheus.GaugeValue, open, point, name)
		if !e.Certificate.IsZero() {
			to <- prometheus.MustNewConstMetric(extensionEnds, prometheus.GaugeValue, float64(e.Certificate.UnixNano())/float64(time.Second), point,
				name)
		}
		if e.Calls > 0 {
			buckets := make(map[float64]uint64, len(e.Latency))
			for i, bound := range extension.Bounds() {
				buckets[bound] = uint64(e.Latency[i])
			}
			to <- prometheus.MustNewConstHistogram(extensionTook, uint64(e.Calls), e.Total.Seconds(), buckets, point, name)
		}
	}
}
