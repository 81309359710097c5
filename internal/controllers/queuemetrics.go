// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// queueMetrics are the metrics of one queue; nil measures nothing.
type queueMetrics struct {
	depth        prometheus.Gauge
	adds, fail   prometheus.Counter
	waited, work prometheus.Observer
}

func (m *Metrics) queue(name string) *queueMetrics {
	if m == nil {
		return nil
	}
	return &queueMetrics{
		depth: m.depth.WithLabelValues(name), adds: m.adds.WithLabelValues(name), fail: m.retries.WithLabelValues(name),
		waited: m.waited.WithLabelValues(name), work: m.work.WithLabelValues(name),
	}
}

func (q *queueMetrics) retried() {
	if q != nil {
		q.fail.Inc()
	}
}

// running records which queue has a name now.
func (m *Metrics) running(name string, q timedQueue) {
	m.queues.mu.Lock()
	defer m.queues.mu.Unlock()
	m.queues.of[name] = q
}

// measuredQueue is a queue that measures the time of its keys. It counts the keys that the queue keeps: adding a key that is queued already
// changes nothing.
type measuredQueue struct {
	workqueue.TypedInterface[any]
	metrics *queueMetrics
	clock   clock.PassiveClock

	mu           sync.Mutex
	added, began map[any]time.Time
}

// Add enqueues a key.
func (q *measuredQueue) Add(key any) {
	q.mu.Lock()
	if _, ok := q.added[key]; !ok && !q.ShuttingDown() {
		q.added[key] = q.clock.Now()
		q.metrics.adds.Inc()
		q.metrics.depth.Set(float64(len(q.added)))
	}
	q.mu.Unlock()
	q.TypedInterface.Add(key)
}

// Get dequeues a key.
func (q *measuredQueue) Get() (any, bool) {
	key, shutdown := q.TypedInterface.Get()
	if shutdown {
		return key, shutdown
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	if at, ok := q.added[key]; ok {
		q.metrics.waited.Observe(now.Sub(at).Seconds())
		delete(q.added, key)
	}
	q.began[key] = now
	q.metrics.depth.Set(float64(len(q.added)))
	return key, false
}

// Done ends the sync of a key.
func (q *measuredQueue) Done(key any) {
	q.mu.Lock()
	if at, ok := q.began[key]; ok {
		q.metrics.work.Observe(q.clock.Since(at).Seconds())
		delete(q.began, key)
	}
	q.mu.Unlock()
	q.TypedInterface.Done(key)
}

// underWay returns how long the keys in progress have been in progress: the sum, and the longest.
func (q *measuredQueue) underWay() (all, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, at := range q.began {
		d := q.clock.Since(at)
		all, longest = all+d, max(longest, d)
	}
	return all, longest
}

type timedQueue interface {
	underWay() (all, longest time.Duration)
}

// queueTimes reads the times of the keys in progress when Prometheus collects it. No sync has to update it meanwhile.
type queueTimes struct {
	mu sync.Mutex
	of map[string]timedQueue
}

var (
	unfinishedWork = prometheus.NewDesc("workqueue_unfinished_work_seconds", "Total duration of the syncs in progress.", []string{"name"}, nil)
	longestRunning = prometheus.NewDesc("workqueue_longest_running_processor_seconds",
		"Duration of the longest sync in progress.", []string{"name"}, nil)
)

// Describe implements [prometheus.Collector].
func (q *queueTimes) Describe(to chan<- *prometheus.Desc) {
	to <- unfinishedWork
	to <- longestRunning
}

// Collect implements [prometheus.Collector].
func (q *queueTimes) Collect(to chan<- prometheus.Metric) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, queue := range q.of {
		all, longest := queue.underWay()
		to <- prometheus.MustNewConstMetric(unfinishedWork, prometheus.GaugeValue, all.Seconds(), name)
		to <- prometheus.MustNewConstMetric(longestRunning, prometheus.GaugeValue, longest.Seconds(), name)
	}
}
