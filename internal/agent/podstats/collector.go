// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// collector measures anew for each scrape.
type collector struct {
	provider         *Provider
	node             string
	name             *prometheus.Desc
	pods, containers *prometheus.Desc
	volumes          []volumeFigure
}

// volumeFigure is a metric of claimed volumes.
type volumeFigure struct {
	desc *prometheus.Desc
	of   func(v *stats.Volume) uint64
}

// NewCollector makes the collector of the node's metrics.
func NewCollector(node string, provider *Provider) prometheus.Collector {
	name := func(s string) string { return prometheus.BuildFQName("", "kubelet", s) }
	c := &collector{provider: provider, node: node,
		name:       prometheus.NewDesc(name("node_name"), "The node's name; always 1", []string{"node"}, nil),
		pods:       prometheus.NewDesc(name("running_pods"), "Pods with a running sandbox", nil, nil),
		containers: prometheus.NewDesc(name("running_containers"), "Containers of pods, by state", []string{"container_state"}, nil),
	}
	for _, f := range []struct {
		name, help string
		of         func(v *stats.Volume) uint64
	}{
		{"capacity_bytes", "Size of the volume, in bytes", func(v *stats.Volume) uint64 { return v.FS.Bytes }},
		{"available_bytes", "What is free of the volume, in bytes", func(v *stats.Volume) uint64 { return v.FS.Free }},
		{"used_bytes", "What is taken of the volume, in bytes", func(v *stats.Volume) uint64 { return v.Bytes }},
		{"inodes", "Files that the volume can have", func(v *stats.Volume) uint64 { return v.FS.Files }},
		{"inodes_free", "Files that the volume can still have", func(v *stats.Volume) uint64 { return v.FS.FilesFree }},
		{"inodes_used", "Files that the volume has", func(v *stats.Volume) uint64 { return v.Files }},
	} {
		desc := prometheus.NewDesc(name("volume_stats_"+f.name), f.help, []string{"namespace", "persistentvolumeclaim"}, nil)
		c.volumes = append(c.volumes, volumeFigure{desc, f.of})
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.name, c.pods, c.containers} {
		ch <- d
	}
	for _, v := range c.volumes {
		ch <- v.desc
	}
}

// Collect implements prometheus.Collector. It leaves out what the runtime does not report.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	put(c.name, 1, c.node)
	// The collector's interface has no context; a runtime that does not respond must not hang the scrape.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	sandboxes, err := c.provider.readySandboxes(ctx)
	if err != nil {
		return
	}
	put(c.pods, float64(len(sandboxes)))
	if containers, err := c.provider.Runtime.Runtime.ListContainers(cri.Quiet(ctx), nil); err == nil {
		states := map[string]float64{}
		for _, o := range containers {
			states[containerStates[o.State]]++
		}
		for state, count := range states {
			put(c.containers, count, state)
		}
	}
	// A claim has one set of metrics, even if several pods use it.
	told := map[[2]string]bool{}
	var pods []*corev1.Pod
	for _, s := range sandboxes {
		if pod := c.provider.Pods.Spec(types.UID(s.GetMetadata().GetUid())); pod != nil {
			pods = append(pods, pod)
		}
	}
	late, stop := c.provider.ask(ctx, pods)
	defer stop()
	for _, pod := range pods {
		for _, v := range c.provider.volumeStats(ctx, late, pod) {
			if key := [2]string{pod.Namespace, v.Claim}; v.Claim != "" && !told[key] {
				told[key] = true
				for _, f := range c.volumes {
					put(f.desc, float64(f.of(&v)), key[0], key[1])
				}
			}
		}
	}
}

// containerStates are kubelet's names of the states.
var containerStates = map[runtimeapi.ContainerState]string{
	runtimeapi.ContainerState_CONTAINER_CREATED: "created", runtimeapi.ContainerState_CONTAINER_RUNNING: "running",
	runtimeapi.ContainerState_CONTAINER_EXITED: "exited", runtimeapi.ContainerState_CONTAINER_UNKNOWN: "unknown",
}
