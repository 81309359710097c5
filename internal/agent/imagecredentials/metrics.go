// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are kubelet's metrics of credential providers.
type Metrics struct {
	errors *prometheus.CounterVec
	took   *prometheus.HistogramVec
	config *prometheus.GaugeVec
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	return &Metrics{
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "credential_provider_plugin_errors_total", Help: "Number of errors from credential provider plugin",
		}, []string{"plugin_name"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "credential_provider_plugin_duration",
			Help: "Duration of execution in seconds for credential provider plugin", Buckets: prometheus.DefBuckets,
		}, []string{"plugin_name"}),
		config: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Subsystem: "kubelet", Name: "credential_provider_config_info",
			Help: "Information about the last applied credential provider configuration with hash as label",
		}, []string{"hash"}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.errors, m.took, m.config}
}

func (m *Metrics) called(provider string, took time.Duration, err error) {
	m.took.WithLabelValues(provider).Observe(took.Seconds())
	if err != nil {
		m.errors.WithLabelValues(provider).Inc()
	}
}

func (m *Metrics) configured(hash string) {
	m.config.Reset()
	m.config.WithLabelValues(hash).Set(1)
}
