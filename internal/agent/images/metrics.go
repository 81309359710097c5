// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
)

// Metrics count how containers got their images.
type Metrics struct {
	ensured *prometheus.CounterVec
	pulls   *prometheus.HistogramVec
	removed *prometheus.CounterVec
}

// NewMetrics makes the counters with zero values.
func NewMetrics() *Metrics {
	return &Metrics{
		ensured: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "image_manager_ensure_image_requests_total",
			Help: "Number of times an image was ensured for a container, by result.",
		}, []string{"pull_policy", "present_locally", "pull_required"}),
		pulls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "kubelet", Name: "image_pull_duration_seconds",
			Help:    "How long successful pulls took, with their wait for other pulls, by the image's size.",
			Buckets: []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600},
		}, []string{"image_size_in_bytes"}),
		removed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "image_garbage_collected_total",
			Help: "Total number of images that the node has removed, by why: their age, or space on the disk.",
		}, []string{"reason"}),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.ensured, m.pulls, m.removed}
}

// finding is whether a container's image was found on the node; nil: not determined.
type finding struct {
	policy           corev1.PullPolicy
	present, pulling *bool
}

func (m *Metrics) found(f finding) {
	word := func(b *bool) string {
		if b == nil {
			return "unknown"
		}
		return strconv.FormatBool(*b)
	}
	m.ensured.WithLabelValues(strings.ToLower(string(f.policy)), word(f.present), word(f.pulling)).Inc()
}

func (m *Metrics) pulled(took time.Duration, size uint64) {
	m.pulls.WithLabelValues(sizeClass(size)).Observe(took.Seconds())
}

// sizeClasses are upstream's: an image that is larger than a bound belongs to the bound's class.
var sizeClasses = []struct {
	above uint64
	name  string
}{
	{100 << 30, "GT100GB"},
	{60 << 30, "60GB-100GB"},
	{40 << 30, "40GB-60GB"},
	{30 << 30, "30GB-40GB"},
	{20 << 30, "20GB-30GB"},
	{10 << 30, "10GB-20GB"},
	{5 << 30, "5GB-10GB"},
	{1 << 30, "1GB-5GB"},
	{500 << 20, "500MB-1GB"},
	{100 << 20, "100MB-500MB"},
	{10 << 20, "10MB-100MB"},
	{0, "0-10MB"},
}

func sizeClass(size uint64) string {
	for _, c := range sizeClasses {
		if size > c.above {
			return c.name
		}
	}
	return "N/A" // the runtime did not report the size
}

// recordCollector reads the node's records of pulled images.
type recordCollector struct {
	manager                 *Manager
	checks, intents, pulled *prometheus.Desc
}

// Collector returns a collector that reads the records of pulled images anew for each scrape.
func (m *Manager) Collector() prometheus.Collector {
	name := func(s string) string { return prometheus.BuildFQName("", "kubelet", "imagemanager_"+s) }
	return &recordCollector{
		manager: m,
		checks: prometheus.NewDesc(name("image_mustpull_checks_total"),
			"Number of checks whether a pod must pull an image that is on the node", []string{"result"}, nil),
		intents: prometheus.NewDesc(name("ondisk_pullintents"), "Pulls in progress or interrupted, by the node's records", nil, nil),
		pulled:  prometheus.NewDesc(name("ondisk_pulledrecords"), "Pulled images, by the node's records", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *recordCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.checks, c.intents, c.pulled} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A node without records has none of these metrics.
func (c *recordCollector) Collect(ch chan<- prometheus.Metric) {
	pulls := c.manager.pulls
	if pulls == nil {
		return
	}
	for result, n := range pulls.Checks() {
		ch <- prometheus.MustNewConstMetric(c.checks, prometheus.CounterValue, float64(n), result)
	}
	if intents, pulled, err := pulls.Records(); err == nil {
		ch <- prometheus.MustNewConstMetric(c.intents, prometheus.GaugeValue, float64(intents))
		ch <- prometheus.MustNewConstMetric(c.pulled, prometheus.GaugeValue, float64(pulled))
	}
}
