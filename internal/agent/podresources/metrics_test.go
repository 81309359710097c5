// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// Calls of the pods API count by their status.
func TestPodsAPIMetrics(t *testing.T) {
	m := NewMetrics()
	s := podsServer{Options: Options{Pods: &pods{list: []*corev1.Pod{pod("a", corev1.PodRunning)}}, Metrics: m}}
	if _, err := s.ListPods(context.Background(), &podsapi.ListPodsRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := s.GetPod(context.Background(), &podsapi.GetPodRequest{PodUID: "x"}); err == nil {
		t.Error("a pod that is not there was found")
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, one := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "kubelet_pod_")
			for _, l := range one.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = one.GetCounter().GetValue()
		}
	}
	want := map[string]float64{
		"requests_total v1alpha1 OK": 1, "requests_total v1alpha1 NotFound": 1, "requests_list_total v1alpha1 OK": 1,
		"requests_get_total v1alpha1 NotFound": 1, "watch_events_dropped_total": 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}
