// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// processMetrics serves the metrics of the node's process.
func (s *Server) processMetrics() http.Handler {
	g := s.o.Metrics
	if g == nil {
		g = ownProcess()
	}
	if s.o.Requests != nil {
		g = prometheus.Gatherers{g, s.o.Requests.registry}
	}
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

// ownProcess gathers the metrics of Go and the kernel for this process.
func ownProcess() prometheus.Gatherer {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// resourceMetrics serves the metrics that the cluster's metrics server reads: CPU and memory of the node, pods and containers.
func (s *Server) resourceMetrics() http.Handler {
	r := prometheus.NewRegistry()
	c := &resourceCollector{s: s}
	container := []string{"container", "namespace", "pod"}
	pod := []string{"namespace", "pod"}
	c.nodeCPU = prometheus.NewDesc("node_cpu_usage_seconds_total", "CPU time used by the node, in core seconds", nil, nil)
	c.nodeMemory = prometheus.NewDesc("node_memory_working_set_bytes", "Working set of the node, in bytes", nil, nil)
	c.cpu = prometheus.NewDesc("container_cpu_usage_seconds_total", "CPU time used by the container, in core seconds", container, nil)
	c.memory = prometheus.NewDesc("container_memory_working_set_bytes", "Working set of the container, in bytes", container, nil)
	c.started = prometheus.NewDesc("container_start_time_seconds", "When the container started, in seconds since 1970", container, nil)
	c.podCPU = prometheus.NewDesc("pod_cpu_usage_seconds_total", "CPU time used by the pod, in core seconds", pod, nil)
	c.podMemory = prometheus.NewDesc("pod_memory_working_set_bytes", "Working set of the pod, in bytes", pod, nil)
	c.nodeSwap = prometheus.NewDesc("node_swap_usage_bytes", "Swapped-out memory of the node in bytes", nil, nil)
	c.swap = prometheus.NewDesc("container_swap_usage_bytes", "Swapped-out memory of the container in bytes", container, nil)
	c.podSwap = prometheus.NewDesc("pod_swap_usage_bytes", "Swapped-out memory of the pod in bytes", pod, nil)
	c.failed = prometheus.NewDesc("resource_scrape_error", "1 if the figures could not be read, otherwise 0", nil, nil)
	r.MustRegister(c)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// resourceCollector measures anew for each scrape.
type resourceCollector struct {
	s                    *Server
	nodeCPU, nodeMemory  *prometheus.Desc
	cpu, memory, started *prometheus.Desc
	podCPU, podMemory    *prometheus.Desc
	nodeSwap, swap       *prometheus.Desc
	podSwap              *prometheus.Desc
	failed               *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *resourceCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.nodeCPU, c.nodeMemory, c.cpu, c.memory, c.started, c.podCPU, c.podMemory, c.nodeSwap, c.swap,
		c.podSwap, c.failed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *resourceCollector) Collect(ch chan<- prometheus.Metric) {
	failed := 0.0
	put := func(at time.Time, d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.NewMetricWithTimestamp(at, prometheus.MustNewConstMetric(d, t, v, labels...))
	}
	// The collector's interface has no context; a runtime that does not respond must not hang the scrape.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := c.s.node.Stats(ctx, stats.Options{})
	if err != nil {
		failed, all = 1, &stats.Usage{}
	}
	switch u, err := c.s.host(all); {
	case err != nil:
		failed = 1
	case u != nil:
		now := c.s.o.Clock()
		put(now, c.nodeCPU, prometheus.CounterValue, float64(u.CPUNanoseconds)/1e9)
		put(now, c.nodeMemory, prometheus.GaugeValue, float64(u.MemoryWorkingSetBytes))
		put(now, c.nodeSwap, prometheus.GaugeValue, float64(u.SwapBytes))
	}
	type sums struct {
		cpu, memory, swap float64
		at                time.Time
	}
	pods := map[podspec.Target]sums{}
	for _, s := range all.Containers {
		t := s.Target
		labels := []string{t.Container, t.Namespace, t.Pod}
		cpu, memory := float64(s.CPUNanoseconds)/1e9, float64(s.MemoryWorkingSetBytes)
		put(s.Time, c.cpu, prometheus.CounterValue, cpu, labels...)
		put(s.Time, c.memory, prometheus.GaugeValue, memory, labels...)
		put(s.Time, c.swap, prometheus.GaugeValue, float64(s.SwapBytes), labels...)
		put(s.Time, c.started, prometheus.GaugeValue, float64(s.Started.UnixNano())/1e9, labels...)
		t.Container = ""
		p := pods[t]
		pods[t] = sums{p.cpu + cpu, p.memory + memory, p.swap + float64(s.SwapBytes), s.Time}
	}
	for t, p := range pods {
		put(p.at, c.podCPU, prometheus.CounterValue, p.cpu, t.Namespace, t.Pod)
		put(p.at, c.podMemory, prometheus.GaugeValue, p.memory, t.Namespace, t.Pod)
		put(p.at, c.podSwap, prometheus.GaugeValue, p.swap, t.Namespace, t.Pod)
	}
	ch <- prometheus.MustNewConstMetric(c.failed, prometheus.GaugeValue, failed)
}
