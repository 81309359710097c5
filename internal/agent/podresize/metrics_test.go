// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
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

// A resize that static managers of exclusive resources rule out counts once, by its cause; one that lacks room does not count by a cause.
func TestInfeasibleResizes(t *testing.T) {
	events := record.NewFakeRecorder(10)
	kubelet := &configv1beta1.KubeletConfiguration{CPUManagerPolicy: "static", MemoryManagerPolicy: "Static"}
	m := New(Config{Kubelet: kubelet, Events: events})
	pod := func(cpu, memory string) *corev1.Pod {
		of := func(cpu, memory string) corev1.ResourceRequirements {
			list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
			return corev1.ResourceRequirements{Requests: list, Limits: list}
		}
		is := of("1", "1Gi")
		return &corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: of(cpu, memory)}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", Resources: &is}}},
		}
	}
	r := m.NewPod()
	for _, p := range []*corev1.Pod{pod("2", "1Gi"), pod("2", "1Gi"), pod("1", "2Gi"), pod("1", "1Gi")} {
		why, _ := m.assigned(p)
		r.troubled(p, corev1.PodCondition{Type: corev1.PodResizePending, Reason: corev1.PodReasonInfeasible, Message: why})
	}
	for _, detail := range []string{cpusAssigned, memoryAssigned} {
		var d dto.Metric
		if err := m.Metrics.infeasible.WithLabelValues(detail).Write(&d); err != nil || d.GetCounter().GetValue() != 1 {
			t.Errorf("%s: %v, %v, want 1", detail, d.GetCounter().GetValue(), err)
		}
	}
	if n := len(events.Events); n != 3 {
		t.Errorf("%d events, want 3", n)
	}
}

// The time that resizes take is in milliseconds, by whether they succeed.
func TestDurationOfResizes(t *testing.T) {
	m := NewMetrics()
	m.actuated(30*time.Millisecond, true)
	m.actuated(2*time.Second, false)
	for success, want := range map[string]float64{"true": 30, "false": 2000} {
		var d dto.Metric
		if err := m.took.WithLabelValues(success).(prometheus.Metric).Write(&d); err != nil || d.GetHistogram().GetSampleSum() != want ||
			d.GetHistogram().GetSampleCount() != 1 {
			t.Errorf("success %s: %v, %v, want %v", success, d.GetHistogram(), err, want)
		}
	}
}
