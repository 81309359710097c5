// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/mortise-dev/mortise/internal/agent/cgroups"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/agent/dra"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/imagecredentials"
	"github.com/mortise-dev/mortise/internal/agent/images"
	"github.com/mortise-dev/mortise/internal/agent/nodestatus"
	"github.com/mortise-dev/mortise/internal/agent/pleg"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/podresources"
	"github.com/mortise-dev/mortise/internal/agent/podworkers"
	"github.com/mortise-dev/mortise/internal/agent/probe"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/agent/shutdown"
)

// Metrics are the metrics of a node under kubelet's names, and those of its process.
type Metrics struct {
	registry  *prometheus.Registry
	evictions *prometheus.CounterVec
	images    *images.Metrics
	admission *podadmission.Metrics
	cgroups   *cgroups.Metrics
	devices   *devicemanager.Metrics
	resources *podresources.Metrics
	exclusive *resourcemetrics.Metrics
	providers *imagecredentials.Metrics
	claims    *dra.Metrics
	storage   *csi.Metrics
	runtime   *cri.Metrics
	relists   *pleg.Metrics
	starts    *podworkers.Metrics
	resizes   *podresize.Metrics
	startup   *nodestatus.Metrics
	leaving   *shutdown.Metrics
	probes    *probe.Metrics // in a registry of their own
	ofProbes  *prometheus.Registry
}

// NewMetrics makes the metrics of a node.
func NewMetrics() *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), images: images.NewMetrics(), admission: podadmission.NewMetrics(),
		cgroups: cgroups.NewMetrics(),
		devices: devicemanager.NewMetrics(), resources: podresources.NewMetrics(),
		exclusive: resourcemetrics.New(),
		providers: imagecredentials.NewMetrics(), claims: dra.NewMetrics(), storage: csi.NewMetrics(), runtime: cri.NewMetrics(),
		resizes: podresize.NewMetrics(), startup: nodestatus.NewMetrics(hardware.Booted(), time.Now()),
		relists: pleg.NewMetrics(), starts: podworkers.NewMetrics(), leaving: shutdown.NewMetrics(),
		probes: probe.NewMetrics(), ofProbes: prometheus.NewRegistry(),
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "evictions", Help: "Evicted pods, by eviction signal.",
		}, []string{"eviction_signal"})}
	m.registry.MustRegister(m.evictions)
	m.registry.MustRegister(m.images.Collectors()...)
	m.registry.MustRegister(m.admission.Collectors()...)
	m.registry.MustRegister(m.cgroups.Collectors()...)
	m.registry.MustRegister(m.devices.Collectors()...)
	m.registry.MustRegister(m.resources.Collectors()...)
	m.registry.MustRegister(m.exclusive.Collectors(true)...)
	m.registry.MustRegister(m.providers.Collectors()...)
	m.registry.MustRegister(m.claims.Collectors()...)
	m.registry.MustRegister(m.storage.Collectors()...)
	m.registry.MustRegister(m.runtime.Collectors()...)
	m.registry.MustRegister(m.relists.Collectors()...)
	m.registry.MustRegister(m.starts.Collectors()...)
	m.registry.MustRegister(m.resizes.Collectors()...)
	m.registry.MustRegister(m.startup.Collectors()...)
	m.registry.MustRegister(m.leaving.Collectors()...)
	m.ofProbes.MustRegister(m.probes.Collectors()...)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Probes returns the metrics of probes, which are not among those of Gatherer.
func (m *Metrics) Probes() prometheus.Gatherer { return m.ofProbes }

// Gatherer returns all metrics but those of probes.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }
