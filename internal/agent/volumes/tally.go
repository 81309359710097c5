// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// tally counts the volumes of pods by plug-in, for kubelet's metric volume_manager_total_volumes.
type tally struct {
	mu sync.Mutex
	of map[types.UID]map[string]*tallied // by pod and the volume's name in the pod
}

type tallied struct {
	plugin          string // with the driver of a CSI volume, as kubelet names it
	wanted, mounted bool
}

func newTally() *tally { return &tally{of: map[types.UID]map[string]*tallied{}} }

// want notes a volume that its pod wants.
func (t *tally) want(spec *Spec, plugin string) {
	switch {
	case spec.Volume.CSI != nil:
		plugin += ":" + spec.Volume.CSI.Driver
	case spec.PersistentVolume != nil && spec.PersistentVolume.Spec.CSI != nil:
		plugin += ":" + spec.PersistentVolume.Spec.CSI.Driver
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.of[spec.Pod.UID]
	if all == nil {
		all = map[string]*tallied{}
		t.of[spec.Pod.UID] = all
	}
	if v := all[spec.Volume.Name]; v != nil {
		v.wanted, v.plugin = true, plugin
		return
	}
	all[spec.Volume.Name] = &tallied{plugin: plugin, wanted: true}
}

// mounted notes that a wanted volume is set up.
func (t *tally) mounted(spec *Spec) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.of[spec.Pod.UID][spec.Volume.Name]; v != nil {
		v.mounted = true
	}
}

// unwant notes that a pod ends.
func (t *tally) unwant(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.of[pod] {
		v.wanted = false
	}
}

// forget drops a pod without volumes.
func (t *tally) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, pod)
}

// totalVolumes is kubelet's metric, with its labels and states.
var totalVolumes = prometheus.NewDesc("volume_manager_total_volumes", "Number of volumes in Volume Manager",
	[]string{"plugin_name", "state"}, nil)

// Describe implements [prometheus.Collector].
func (t *tally) Describe(to chan<- *prometheus.Desc) { to <- totalVolumes }

// Collect implements [prometheus.Collector].
func (t *tally) Collect(to chan<- prometheus.Metric) {
	counts := map[[2]string]float64{}
	t.mu.Lock()
	for _, all := range t.of {
		for _, v := range all {
			if v.wanted {
				counts[[2]string{v.plugin, "desired_state_of_world"}]++
			}
			if v.mounted {
				counts[[2]string{v.plugin, "actual_state_of_world"}]++
			}
		}
	}
	t.mu.Unlock()
	for labels, n := range counts {
		to <- prometheus.MustNewConstMetric(totalVolumes, prometheus.GaugeValue, n, labels[:]...)
	}
}

// Total returns the collector of the metric volume_manager_total_volumes.
func (m *Manager) Total() prometheus.Collector { return m.tally }
