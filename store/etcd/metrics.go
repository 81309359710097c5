// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a Prometheus collector of what the mirror does, under names that begin with mortise_store_etcd_.
func (e *Engine) Collector() prometheus.Collector {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("mortise_store_etcd_"+name, help, nil, nil)
	}
	return &collector{
		engine:    e,
		revision:  describe("mirror_revision", "Revision of etcd that the mirror has reached."),
		late:      describe("mirror_wait_seconds", "For how long the longest waiting read waits for the mirror now."),
		watching:  describe("mirror_watching", "1 if the mirror has a watch of etcd."),
		restarts:  describe("watch_restarts_total", "Watches of etcd that ended."),
		reloads:   describe("mirror_reloads_total", "Times that the mirror read everything again, since etcd had compacted what it lacked."),
		questions: describe("questions_total", "Times that etcd was asked for its revision."),
		reads:     describe("fresh_reads_total", "Reads that needed such an answer."),
	}
}

// collector implements [prometheus.Collector].
type collector struct {
	engine                                                        *Engine
	revision, late, watching, restarts, reloads, questions, reads *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	m, q := c.engine.mirror, c.engine.question
	var late, watching float64
	if since := m.waiting.since(); !since.IsZero() {
		late = time.Since(since).Seconds()
	}
	if m.watches() {
		watching = 1
	}
	to <- prometheus.MustNewConstMetric(c.revision, prometheus.GaugeValue, float64(m.db.Revision()))
	to <- prometheus.MustNewConstMetric(c.late, prometheus.GaugeValue, late)
	to <- prometheus.MustNewConstMetric(c.watching, prometheus.GaugeValue, watching)
	to <- prometheus.MustNewConstMetric(c.restarts, prometheus.CounterValue, float64(m.restarts.Load()))
	to <- prometheus.MustNewConstMetric(c.reloads, prometheus.CounterValue, float64(m.reloads.Load()))
	to <- prometheus.MustNewConstMetric(c.questions, prometheus.CounterValue, float64(q.asked.Load()))
	to <- prometheus.MustNewConstMetric(c.reads, prometheus.CounterValue, float64(q.answered.Load()))
}
