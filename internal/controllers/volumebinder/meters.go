// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// meters are upstream's metrics of this controller, under its names.
type meters struct {
	assigned, notAssigned prometheus.Counter
	errors, errorsOld     *prometheus.CounterVec
}

func newMeters(d *controllers.Deps, c *controller) (*meters, error) {
	var failure error
	m := &meters{
		assigned: controllers.Keep(d.Metrics, &failure, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retroactive_storageclass_total", Help: "Claims that got the default class after they were created, and failures of that.",
		})),
		notAssigned: controllers.Keep(d.Metrics, &failure, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "retroactive_storageclass_errors_total", Help: "Failures to set the default class of a claim after it was created.",
		})),
		errors: controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "volume_operation_errors_total", Help: "Failures to provision or delete a volume.",
		}, []string{"plugin_name", "operation_name"})),
		errorsOld: controllers.Keep(d.Metrics, &failure, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "volume_operation_total_errors", Help: "The older name of volume_operation_errors_total.",
		}, []string{"plugin_name", "operation_name"})),
	}
	controllers.Keep(d.Metrics, &failure, &census{}).of.Store(c)
	return m, failure
}

func (m *meters) classAssigned(err error) {
	m.assigned.Inc()
	if err != nil {
		m.notAssigned.Inc()
	}
}

// removed counts a failure to delete a volume.
func (m *meters) removed(driver string, err error) {
	if err != nil {
		m.errors.WithLabelValues(driver, "delete").Inc()
		m.errorsOld.WithLabelValues(driver, "delete").Inc()
	}
}

// census counts volumes and claims when the metrics are read.
type census struct{ of atomic.Pointer[controller] }

var (
	ofClaims  = []string{"namespace", "storage_class", "volume_attributes_class"}
	ofVolumes = []string{"storage_class"}

	totalVolumes   = prometheus.NewDesc("pv_collector_total_pv_count", "PersistentVolumes.", []string{"plugin_name", "volume_mode"}, nil)
	boundVolumes   = prometheus.NewDesc("pv_collector_bound_pv_count", "PersistentVolumes that are bound.", ofVolumes, nil)
	unboundVolumes = prometheus.NewDesc("pv_collector_unbound_pv_count", "PersistentVolumes that are not bound.", ofVolumes, nil)
	boundClaims    = prometheus.NewDesc("pv_collector_bound_pvc_count", "PersistentVolumeClaims that are bound.", ofClaims, nil)
	unboundClaims  = prometheus.NewDesc("pv_collector_unbound_pvc_count", "PersistentVolumeClaims that are not bound.", ofClaims, nil)
)

// Describe implements [prometheus.Collector].
func (*census) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{totalVolumes, boundVolumes, unboundVolumes, boundClaims, unboundClaims} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *census) Collect(to chan<- prometheus.Metric) {
	c := s.of.Load()
	if c == nil {
		return
	}
	counts := map[*prometheus.Desc]map[[3]string]int{}
	count := func(what *prometheus.Desc, labels ...string) {
		if counts[what] == nil {
			counts[what] = map[[3]string]int{}
		}
		var key [3]string
		copy(key[:], labels)
		counts[what][key]++
	}
	for _, obj := range c.free.List() {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		count(totalVolumes, driverOf(pv), string(ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)))
		if pv.Status.Phase == corev1.VolumeBound {
			count(boundVolumes, pv.Spec.StorageClassName)
		} else {
			count(unboundVolumes, pv.Spec.StorageClassName)
		}
	}
	for _, obj := range c.waiting.List() {
		claim, ok := obj.(*corev1.PersistentVolumeClaim)
		if !ok {
			continue
		}
		what := unboundClaims
		if claim.Status.Phase == corev1.ClaimBound {
			what = boundClaims
		}
		count(what, claim.Namespace, volume.GetPersistentVolumeClaimClass(claim), ptr.Deref(claim.Spec.VolumeAttributesClassName, ""))
	}
	labels := map[*prometheus.Desc]int{totalVolumes: 2, boundVolumes: 1, unboundVolumes: 1, boundClaims: 3, unboundClaims: 3}
	for what, of := range counts {
		for key, n := range of {
			to <- prometheus.MustNewConstMetric(what, prometheus.GaugeValue, float64(n), key[:labels[what]]...)
		}
	}
}

// driverOf returns the driver of a volume as kube-controller-manager names it: it knows two drivers besides none.
func driverOf(pv *corev1.PersistentVolume) string {
	switch {
	case pv.Spec.HostPath != nil:
		return hostPathDriver
	case pv.Spec.NFS != nil:
		return "kubernetes.io/nfs"
	}
	return "N/A"
}
