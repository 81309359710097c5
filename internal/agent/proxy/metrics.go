// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the proxy's metrics under kube-proxy's names.
type Metrics struct {
	took, tookAll, tookSome         *prometheus.HistogramVec
	synced, queued, without         *prometheus.GaugeVec
	failures, restores              *prometheus.CounterVec // of transactions, by nftables and by iptables
	sweeps, flows                   *prometheus.CounterVec
	serviceChanges, endpointChanges prometheus.Counter
	healthz, livez                  *prometheus.CounterVec // responses by status code

	own *prometheus.Registry // of all these metrics
}

// Gatherer returns these metrics only.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.own }

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	const family = "ip_family"
	duration := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubeproxy", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{family})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Subsystem: "kubeproxy", Name: name, Help: help}, append(labels, family))
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}, []string{family})
	}
	answers := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubeproxy", Name: name, Help: help}, []string{"code"})
	}
	m := &Metrics{
		own:      prometheus.NewRegistry(),
		healthz:  answers("proxy_healthz_total", "Answers of the proxy's /healthz."),
		livez:    answers("proxy_livez_total", "Answers of the proxy's /livez."),
		took:     duration("sync_proxy_rules_duration_seconds", "How long it takes to bring the rules up to date."),
		tookAll:  duration("sync_full_proxy_rules_duration_seconds", "The same where all rules were written."),
		tookSome: duration("sync_partial_proxy_rules_duration_seconds", "The same where only what changed was."),
		synced:   gauge("sync_proxy_rules_last_timestamp_seconds", "When the rules were last brought up to date."),
		queued:   gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a change was last heard of."),
		without: gauge("sync_proxy_rules_no_local_endpoints_total", "Ports with the traffic policy Local that have no endpoint here.",
			"traffic_policy"),
		failures: counter("sync_proxy_rules_nftables_sync_failures_total", "Failed transactions."),
		restores: counter("sync_proxy_rules_iptables_restore_failures_total", "Failed runs of iptables-restore."),
		sweeps:   counter("sync_proxy_rules_nftables_cleanup_failures_total", "Failed attempts to delete unused chains."),
		flows: counter("conntrack_reconciler_deleted_entries_total",
			"UDP conntrack entries that were deleted because their endpoint was removed."),
		serviceChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "kubeproxy", Name: "sync_proxy_rules_service_changes_total", Help: "Changes of Services.",
		}),
		endpointChanges: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "kubeproxy", Name: "sync_proxy_rules_endpoint_changes_total", Help: "Changes of EndpointSlices.",
		}),
	}
	for _, c := range []prometheus.Collector{
		m.took, m.tookAll, m.tookSome, m.synced, m.queued, m.without, m.failures, m.restores, m.sweeps, m.flows, m.serviceChanges,
		m.endpointChanges,
		m.healthz, m.livez,
	} {
		for _, r := range []prometheus.Registerer{registry, m.own} {
			if err := r.Register(c); err != nil {
				return nil, fmt.Errorf("register proxy metrics: %w", err)
			}
		}
	}
	return m, nil
}

func (m *Metrics) wrote(t *table, whole bool, begin, end time.Time, err error) {
	if m == nil {
		return
	}
	family, took := string(t.ip), end.Sub(begin).Seconds()
	m.took.WithLabelValues(family).Observe(took)
	if whole {
		m.tookAll.WithLabelValues(family).Observe(took)
	} else {
		m.tookSome.WithLabelValues(family).Observe(took)
	}
	if err != nil {
		if t.book.mapped() {
			m.failures.WithLabelValues(family).Inc()
		} else {
			m.restores.WithLabelValues(family).Inc()
		}
		return
	}
	m.synced.WithLabelValues(family).Set(float64(end.UnixNano()) / 1e9)
	internal, external := 0, 0
	for _, p := range t.plans {
		internal, external = internal+p.noInternal, external+p.noExternal
	}
	m.without.WithLabelValues("internal", family).Set(float64(internal))
	m.without.WithLabelValues("external", family).Set(float64(external))
}

func (m *Metrics) forgot(t *table, flows uint) {
	if m != nil {
		m.flows.WithLabelValues(string(t.ip)).Add(float64(flows))
	}
}

func (m *Metrics) swept(t *table) {
	if m != nil {
		m.sweeps.WithLabelValues(string(t.ip)).Inc()
	}
}

func (m *Metrics) heard(now time.Time, changes func(*Metrics) prometheus.Counter) {
	if m == nil {
		return
	}
	changes(m).Inc()
	for _, f := range families() {
		m.queued.WithLabelValues(string(f.ip)).Set(float64(now.UnixNano()) / 1e9)
	}
}
