// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestRequestedResizes(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, text := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
			if text != "" {
				out[name] = resource.MustParse(text)
			}
		}
		return out
	}
	pod := func(requests, limits corev1.ResourceList) *corev1.Pod {
		c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
	}
	m := NewMetrics()
	m.Requested(pod(list("1", "1Gi"), list("", "1Gi")), pod(list("2", "1024Mi"), list("3", "")))
	m.Requested(pod(list("2", "1Gi"), nil), pod(list("1", "1Gi"), nil))
	for _, want := range [][]string{
		{"cpu", "limits", "add"}, {"cpu", "requests", "decrease"}, {"cpu", "requests", "increase"}, {"memory", "limits", "remove"},
	} {
		var d dto.Metric
		if err := m.requested.WithLabelValues(want...).Write(&d); err != nil || d.GetCounter().GetValue() != 1 {
			t.Errorf("%v: %v, %v, want 1", want, d.GetCounter().GetValue(), err)
		}
		m.requested.DeleteLabelValues(want...)
	}
	others := make(chan prometheus.Metric, 10)
	m.requested.Collect(others)
	if len(others) > 0 {
		t.Errorf("%d other resizes, of which one is %v", len(others), <-others)
	}
}
