// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/mortise-dev/mortise/internal/apiserver/health"
)

// Sources provide values when metrics are collected. A nil function has no metrics.
type Sources struct {
	Version version.Info
	// Inflight returns the maximum number of concurrent requests in the last second.
	Inflight func() (reads, writes int64)
	// Objects calls tell with the number of stored objects of each resource.
	Objects func(tell func(r schema.GroupResource, n int64))
	// Storage returns the size of the store on disk in bytes.
	Storage func() int64
	// Watches calls tell with the traffic of watches.
	Watches func(tell func(Watched))
	// Health returns the results of the health checks.
	Health func() []health.Result
	// Libraries has metrics that libraries collect themselves; nil: none.
	Libraries prometheus.Gatherer
}

// Watched is the traffic of the watches of a resource.
type Watched struct {
	schema.GroupVersionResource
	Events int64
	// Bytes is the total size of the events. Sizes counts the events by size: up to each of SizeBounds, and beyond.
	Bytes int64
	Sizes []int64
	// Ended is the number of watches that were ended because their clients were too slow.
	Ended int64
}

// SizeBounds returns the upper bounds of the size classes of watch events.
func SizeBounds() []float64 { return prometheus.ExponentialBuckets(1024, 2, 8) }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector collects the metrics of its sources.
type collector struct{ sources Sources }

var (
	inflight = describe("apiserver_current_inflight_requests",
		"[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in last second.", "request_kind")
	objects = describe("apiserver_resource_objects", "[ALPHA] Number of stored objects at the time of last check split by kind.",
		"group", "resource")
	storage = describe("apiserver_storage_size_bytes", "[STABLE] Size of the storage database file physically allocated in bytes.",
		"storage_cluster_id")
	watchEvents   = describe("apiserver_watch_events_total", "[BETA] Number of events sent in watch clients", "group", "version", "resource")
	watchSizes    = describe("apiserver_watch_events_sizes", "[BETA] Watch event size distribution in bytes", "group", "version", "resource")
	watchersEnded = describe("apiserver_terminated_watchers_total",
		"[ALPHA] Counter of watchers closed due to unresponsiveness broken by resource type.", "group", "resource")
	build = describe("kubernetes_build_info",
		"[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		"major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform")
)

// Describe implements [prometheus.Collector]: the metrics are not known beforehand.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{inflight, objects, storage, watchEvents, watchSizes, watchersEnded, build} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	s := &c.sources
	if v := s.Version; v.GitVersion != "" {
		gauge(build, 1, v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion, v.Compiler, v.Platform)
	}
	if s.Inflight != nil {
		reads, writes := s.Inflight()
		gauge(inflight, reads, "readOnly")
		gauge(inflight, writes, "mutating")
	}
	if s.Objects != nil {
		s.Objects(func(r schema.GroupResource, n int64) { gauge(objects, n, r.Group, r.Resource) })
	}
	if s.Storage != nil {
		gauge(storage, s.Storage(), "mortise-0")
	}
	if s.Watches != nil {
		ended := map[schema.GroupResource]int64{}
		s.Watches(func(w Watched) {
			ended[w.GroupResource()] += w.Ended
			to <- prometheus.MustNewConstMetric(watchEvents, prometheus.CounterValue, float64(w.Events), w.Group, w.Version, w.Resource)
			buckets, n := map[float64]uint64{}, int64(0)
			for i, bound := range SizeBounds() {
				n += w.Sizes[i]
				buckets[bound] = uint64(n)
			}
			to <- prometheus.MustNewConstHistogram(watchSizes, uint64(w.Events), float64(w.Bytes), buckets, w.Group, w.Version, w.Resource)
		})
		for r, n := range ended {
			if n > 0 {
				to <- prometheus.MustNewConstMetric(watchersEnded, prometheus.CounterValue, float64(n), r.Group, r.Resource)
			}
		}
	}
}

// healthCollector collects the results of health checks.
type healthCollector struct{ health func() []health.Result }

var (
	checkLast  = describe("kubernetes_healthcheck", "[STABLE] This metric records the result of a single healthcheck.", "name", "type")
	checkTotal = describe("kubernetes_healthchecks_total", "[STABLE] This metric records the results of all healthcheck.", "name", "type",
		"status")
)

// Describe implements [prometheus.Collector].
func (c *healthCollector) Describe(to chan<- *prometheus.Desc) { to <- checkLast; to <- checkTotal }

// Collect implements [prometheus.Collector].
func (c *healthCollector) Collect(to chan<- prometheus.Metric) {
	if c.health == nil {
		return
	}
	for _, r := range c.health() {
		last := 0.0
		if r.OK {
			last = 1
		}
		to <- prometheus.MustNewConstMetric(checkLast, prometheus.GaugeValue, last, r.Check, string(r.Root))
		for status, n := range map[string]int64{"success": r.Passed, "error": r.Failed} {
			if n > 0 {
				to <- prometheus.MustNewConstMetric(checkTotal, prometheus.CounterValue, float64(n), r.Check, string(r.Root), status)
			}
		}
	}
}
