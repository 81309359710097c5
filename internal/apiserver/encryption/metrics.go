// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package encryption

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts reloads, under upstream's names. It is a [prometheus.Collector].
type Metrics struct {
	id       string // hash of the server's ID
	reloads  *prometheus.CounterVec
	newest   *prometheus.GaugeVec
	inEffect *prometheus.GaugeVec
}

func newMetrics(serverID string) *Metrics {
	const namespace, subsystem = "apiserver", "encryption_config_controller"
	m := &Metrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "automatic_reloads_total",
			Help: "Reloads of the encryption configuration, by status and API server identity.",
		}, []string{"status", "apiserver_id_hash"}),
		newest: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "automatic_reload_last_timestamp_seconds",
			Help: "Time of the last reload of the encryption configuration, by status and API server identity.",
		}, []string{"status", "apiserver_id_hash"}),
		inEffect: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "last_config_info",
			Help: "The encryption configuration in force, by its hash and API server identity.",
		}, []string{"apiserver_id_hash", "hash"}),
	}
	if serverID != "" {
		m.id = fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(serverID)))
	}
	return m
}

func (m *Metrics) reloaded(ok bool, now time.Time) {
	status := "failure"
	if ok {
		status = "success"
	}
	m.reloads.WithLabelValues(status, m.id).Inc()
	m.newest.WithLabelValues(status, m.id).Set(float64(now.UnixNano()) / 1e9)
}

func (m *Metrics) inForce(hash string) {
	m.inEffect.Reset()
	m.inEffect.WithLabelValues(m.id, hash).Set(1)
}

// Metrics returns the metrics of the transformers.
func (t *Transformers) Metrics() *Metrics { return t.metrics }

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	m.reloads.Describe(to)
	m.newest.Describe(to)
	m.inEffect.Describe(to)
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.reloads.Collect(to)
	m.newest.Collect(to)
	m.inEffect.Collect(to)
}
