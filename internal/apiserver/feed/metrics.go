// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import "github.com/prometheus/client_golang/prometheus"

var (
	revisionDesc = prometheus.NewDesc("mortise_feed_revision",
		"Revision of the store up to which a follower has applied the changes of its resources.", []string{"follower"}, nil)
	queuedDesc  = prometheus.NewDesc("mortise_feed_queued_changes", "Changes queued for a follower.", []string{"follower"}, nil)
	failingDesc = prometheus.NewDesc("mortise_feed_failing_objects", "Objects whose newest state a follower could not apply.",
		[]string{"follower"}, nil)
)

// newTook measures each change that is applied; the other figures are read when they are asked for.
func newTook() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "mortise_feed_apply_duration_seconds", Help: "Time that a follower took to apply a change.",
		Buckets: []float64{1e-5, 1e-4, 1e-3, 1e-2, .1, 1, 10},
	}, []string{"follower"})
}

// Describe implements [prometheus.Collector].
func (f *Feed) Describe(to chan<- *prometheus.Desc) {
	to <- revisionDesc
	to <- queuedDesc
	to <- failingDesc
	f.took.Describe(to)
}

// Collect implements [prometheus.Collector].
func (f *Feed) Collect(to chan<- prometheus.Metric) {
	for _, each := range f.followers {
		each.mu.Lock()
		applied, queued, failing := each.applied, len(each.waiting), len(each.failing)
		each.mu.Unlock()
		to <- prometheus.MustNewConstMetric(revisionDesc, prometheus.GaugeValue, float64(applied), each.Name)
		to <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(queued), each.Name)
		to <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, float64(failing), each.Name)
	}
	f.took.Collect(to)
}
