// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcemetrics has the metrics of the CPU, memory and topology managers under kubelet's names.
package resourcemetrics

import "github.com/prometheus/client_golang/prometheus"

// Label values of Aligned and Misaligned.
const (
	ScopeContainer = "container"
	ScopePod       = "pod"

	BoundaryNUMA        = "numa_node"
	BoundaryPhysicalCPU = "physical_cpu"
	BoundaryUncoreCache = "uncore_cache"
)

// Label values of Allocations, AllocationErrors and Assignments.
const (
	CPU    = "cpu"
	Memory = "memory"

	FromNode = "node"
	FromPod  = "pod"

	NodeExclusive = "node_exclusive"
	PodShared     = "pod_shared"
	PodExclusive  = "pod_exclusive"
)

// Metrics are the metrics.
type Metrics struct {
	CPURequests, CPUErrors       prometheus.Counter
	SharedMilliCores             prometheus.Gauge
	ExclusiveCPUs                prometheus.Gauge
	CPUsPerNUMA                  *prometheus.GaugeVec
	MemoryRequests, MemoryErrors prometheus.Counter
	Admissions, AdmissionErrors  prometheus.Counter
	AdmissionDuration            prometheus.Histogram   // milliseconds
	Aligned, Misaligned          *prometheus.CounterVec // by scope and boundary

	Allocations, AllocationErrors *prometheus.CounterVec // by resource and source
	Assignments                   *prometheus.CounterVec // by resource and kind
}

// New makes the metrics.
func New() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "kubelet", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Subsystem: "kubelet", Name: name, Help: help}
	}
	m := &Metrics{
		CPURequests: counter("cpu_manager_pinning_requests_total", "The number of cpu core allocations which required pinning."),
		CPUErrors:   counter("cpu_manager_pinning_errors_total", "The number of cpu core allocations which required pinning failed."),
		SharedMilliCores: prometheus.NewGauge(gauge("cpu_manager_shared_pool_size_millicores",
			"The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.")),
		ExclusiveCPUs: prometheus.NewGauge(gauge("cpu_manager_exclusive_cpu_allocation_count",
			"The total number of CPUs exclusively allocated to containers running on this node")),
		CPUsPerNUMA:     prometheus.NewGaugeVec(gauge("cpu_manager_allocation_per_numa", "Number of CPUs allocated per NUMA node"), []string{BoundaryNUMA}),
		MemoryRequests:  counter("memory_manager_pinning_requests_total", "The number of memory pages allocations which required pinning."),
		MemoryErrors:    counter("memory_manager_pinning_errors_total", "The number of memory pages allocations which required pinning that failed."),
		Admissions:      counter("topology_manager_admission_requests_total", "The number of admission requests where resources have to be aligned."),
		AdmissionErrors: counter("topology_manager_admission_errors_total", "The number of admission request failures where resources could not be aligned."),
		AdmissionDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Subsystem: "kubelet", Name: "topology_manager_admission_duration_ms",
			Help: "Duration in milliseconds to serve a pod admission request.", Buckets: prometheus.ExponentialBuckets(.05, 2, 15)}),
		Aligned: counters("container_aligned_compute_resources_count",
			"Cumulative number of aligned compute resources allocated to containers by alignment type.", "scope", "boundary"),
		Misaligned: counters("container_aligned_compute_resources_failure_count",
			"Cumulative number of failures to allocate aligned compute resources to containers by alignment type.", "scope", "boundary"),
		Allocations: counters("resource_manager_allocations_total",
			"Number of exclusive resource allocations performed by a resource manager.", "resource_name", "source"),
		AllocationErrors: counters("resource_manager_allocation_errors_total",
			"Number of errors encountered during exclusive resource allocation.", "resource_name", "source"),
		Assignments: counters("resource_manager_container_assignments_total",
			"Number of containers with a specific type of resource assignment.", "resource_name", "assignment_type"),
	}
	return m
}

// Collectors returns the metrics to register; those of pod-level resources only if their feature is on, as kubelet has it.
func (m *Metrics) Collectors(podLevel bool) []prometheus.Collector {
	out := []prometheus.Collector{
		m.CPURequests, m.CPUErrors, m.SharedMilliCores, m.ExclusiveCPUs, m.CPUsPerNUMA, m.MemoryRequests, m.MemoryErrors,
		m.Admissions, m.AdmissionErrors, m.AdmissionDuration, m.Aligned, m.Misaligned,
	}
	if podLevel {
		out = append(out, m.Allocations, m.AllocationErrors, m.Assignments)
	}
	return out
}
