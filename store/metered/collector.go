// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metered

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Collector returns a Prometheus collector of the counters, under names that begin with mortise_store_.
func (e *Engine) Collector() prometheus.Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("mortise_store_"+name, help, labels, nil)
	}
	return &collector{
		engine:    e,
		latency:   describe("operation_duration_seconds", "Duration of operations of the store.", "operation"),
		errors:    describe("operation_errors_total", "Failed operations of the store, conflicts excluded.", "operation"),
		conflicts: describe("operation_conflicts_total", "Operations of the store that failed by a conflict.", "operation"),
		revision:  describe("revision", "Newest revision."),
		compacted: describe("compacted_revision", "Oldest readable revision."),
		watchers:  describe("watchers", "Open watchers."),
		events:    describe("watch_events_total", "Events delivered to watchers."),
		bookmarks: describe("watch_bookmarks_total", "Bookmarks delivered to watchers."),
		read:      describe("read_records_total", "Records read."),
		written:   describe("written_bytes_total", "Bytes of committed keys and values."),
		keys:      describe("keys", "Live keys."),
		bytes:     describe("bytes", "Bytes of live keys and values."),
		history:   describe("history_events", "Events in the history."),
		disk:      describe("disk_bytes", "Bytes on disk."),
	}
}

// collector implements [prometheus.Collector].
type collector struct {
	engine                           *Engine
	latency, errors, conflicts       *prometheus.Desc
	revision, compacted, watchers    *prometheus.Desc
	events, bookmarks, read, written *prometheus.Desc
	keys, bytes, history, disk       *prometheus.Desc
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.engine.Snapshot()
	metric := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	bounds := Bounds()
	for name, o := range s.Operations {
		cumulative := make(map[float64]uint64, len(bounds))
		var n uint64
		for i, bound := range bounds {
			n += o.Latency.Buckets[i]
			cumulative[bound.Seconds()] = n
		}
		to <- prometheus.MustNewConstHistogram(c.latency, o.Latency.Count, o.Latency.Sum.Seconds(), cumulative, name)
		metric(c.errors, prometheus.CounterValue, float64(o.Errors), name)
		metric(c.conflicts, prometheus.CounterValue, float64(o.Conflicts), name)
	}
	metric(c.revision, prometheus.GaugeValue, float64(s.Revision))
	metric(c.compacted, prometheus.GaugeValue, float64(s.Compacted))
	metric(c.watchers, prometheus.GaugeValue, float64(s.Watchers))
	metric(c.events, prometheus.CounterValue, float64(s.Events))
	metric(c.bookmarks, prometheus.CounterValue, float64(s.Bookmarks))
	metric(c.read, prometheus.CounterValue, float64(s.Read))
	metric(c.written, prometheus.CounterValue, float64(s.Written))
	metric(c.keys, prometheus.GaugeValue, float64(s.Size.Keys))
	metric(c.bytes, prometheus.GaugeValue, float64(s.Size.Bytes))
	metric(c.history, prometheus.GaugeValue, float64(s.Size.History))
	metric(c.disk, prometheus.GaugeValue, float64(s.Size.Disk))
}
