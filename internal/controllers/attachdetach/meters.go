// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	operations *prometheus.HistogramVec
	forcings   *prometheus.CounterVec
}

func newMeters(d *controllers.Deps, c *controller) (*meters, error) {
	var failure error
	m := &meters{
		operations: controllers.Keep(d.Metrics, &failure, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "Time from the start of an operation on a volume to its success or failure.",
			Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
		}, []string{"volume_plugin", "operation_name", "status", "migrated"})),
		forcings: controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "attach_detach_controller", Name: "attachdetach_controller_forced_detaches",
			Help: "Volumes that were detached although the node may have had them mounted.",
		}, []string{"reason"})),
	}
	controllers.Keep(d.Metrics, &failure, &census{}).of.Store(c)
	return m, failure
}

func (m *meters) observe(s *spot, operation string, began, now time.Time, err error) {
	driver, _, _ := parseName(s.volume)
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	if began.IsZero() {
		began = now
	}
	m.operations.WithLabelValues(plugin+":"+driver, operation, status, strconv.FormatBool(s.disk != nil && s.disk.migrated)).
		Observe(now.Sub(began).Seconds())
}

func (m *meters) attached(s *spot, now time.Time, err error) {
	m.observe(s, "volume_attach", s.attaching, now, err)
}

func (m *meters) detached(s *spot, now time.Time, err error) {
	m.observe(s, "volume_detach", s.detaching, now, err)
}

// forced counts a detachment that did not ask the node.
func (m *meters) forced(how verdict) {
	switch how {
	case byTimeout:
		m.forcings.WithLabelValues("timeout").Inc()
	case byTaint:
		m.forcings.WithLabelValues("out-of-service").Inc()
	}
}

// census counts volumes when the metrics are read.
type census struct{ of atomic.Pointer[controller] }

var (
	inUse = prometheus.NewDesc("storage_count_attachable_volumes_in_use", "Volumes that pods of a node use.",
		[]string{"node", "volume_plugin"}, nil)
	total = prometheus.NewDesc("attachdetach_controller_total_volumes", "Volumes on nodes that are or shall be attached.",
		[]string{"plugin_name", "state"}, nil)
)

// Describe implements [prometheus.Collector].
func (*census) Describe(to chan<- *prometheus.Desc) {
	to <- inUse
	to <- total
}

// Collect implements [prometheus.Collector].
func (s *census) Collect(to chan<- prometheus.Metric) {
	c := s.of.Load()
	if c == nil {
		return
	}
	actual, desired := map[string]int{}, map[string]int{}
	c.registry.counts(func(volume string, tracked, wanted int) {
		driver, _, _ := parseName(volume)
		actual[driver] += tracked
		if wanted > 0 {
			desired[driver] += wanted
		}
	})
	for state, counts := range map[string]map[string]int{"actual_state_of_world": actual, "desired_state_of_world": desired} {
		for driver, n := range counts {
			to <- prometheus.MustNewConstMetric(total, prometheus.GaugeValue, float64(n), plugin+":"+driver, state)
		}
	}
	type use struct{ node, driver string }
	uses := map[use]int{}
	for _, obj := range c.catalog.pods.List() {
		pod, ok := obj.(*corev1.Pod)
		if !ok || pod.Spec.NodeName == "" {
			continue
		}
		for i := range pod.Spec.Volumes {
			if source := pod.Spec.Volumes[i].CSI; source != nil {
				uses[use{pod.Spec.NodeName, source.Driver}]++
			} else if d, err := c.catalog.diskOf(pod, &pod.Spec.Volumes[i]); err == nil && d != nil {
				uses[use{pod.Spec.NodeName, d.driver}]++
			}
		}
	}
	for of, n := range uses {
		to <- prometheus.MustNewConstMetric(inUse, prometheus.GaugeValue, float64(n), of.node, plugin+":"+of.driver)
	}
}
