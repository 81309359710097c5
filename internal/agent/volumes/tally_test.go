// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// total returns volume_manager_total_volumes by its labels.
func total(t *testing.T, m *volumes.Manager) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(m.Total()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "volume_manager_total_volumes" {
			t.Errorf("metric %s", f.GetName())
		}
		for _, one := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range one.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			out[labels["plugin_name"]+" "+labels["state"]] = one.GetGauge().GetValue()
		}
	}
	return out
}

// The metric counts the volumes of pods that containers have, those that are wanted and those that are set up, as kubelet's does.
func TestTotal(t *testing.T) {
	m, _, _, _ := newManager(t)
	pod := volumetest.Pod(configMap("cm", false))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "missing", VolumeSource: configMap("no", false)},
		corev1.Volume{Name: "unused", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	for _, name := range []string{"missing", "scratch"} {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	check := func(when string, want map[string]float64) {
		t.Helper()
		got := total(t, m)
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		for labels, n := range want {
			if got[labels] != n {
				t.Errorf("%s: %s is %v, want %v", when, labels, got[labels], n)
			}
		}
	}
	check("before", nil)
	for range 2 {
		if err := m.SetUp(t.Context(), pod, nil); err == nil {
			t.Error("a ConfigMap that does not exist is there")
		}
	}
	check("set up", map[string]float64{
		"kubernetes.io/configmap desired_state_of_world": 2, "kubernetes.io/configmap actual_state_of_world": 1,
		"kubernetes.io/empty-dir desired_state_of_world": 1, "kubernetes.io/empty-dir actual_state_of_world": 1,
	})
	if err := m.TearDown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	check("torn down", nil)
}
