// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"errors"
	"maps"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// answer is what the metrics servers say of one metric.
type answer struct {
	err      error
	pods     *metrics.PodMetricsList
	custom   *custommetrics.MetricValueList
	object   *custommetrics.MetricValue
	external *externalmetrics.ExternalMetricValueList
}

// measure makes what the servers say of the metrics of an autoscaler now. All resource metrics of a target come from one answer.
func (d dice) measure(h *autoscalingv2.HorizontalPodAutoscaler, t *target, now time.Time) {
	for len(t.load) < len(h.Spec.Metrics) {
		t.load = append(t.load, pick(d, 0, 0.3, 0.8, 0.95, 1, 1.05, 1.15, 1.6, 4, 40))
	}
	t.answers = make([]answer, len(h.Spec.Metrics))
	var usage *metrics.PodMetricsList
	var unread error
	for i, m := range h.Spec.Metrics {
		if d.in(30) {
			t.load[i] = pick(d, 0, 0.3, 0.8, 0.95, 1, 1.05, 1.15, 1.6, 4, 40)
		}
		a := &t.answers[i]
		if d.in(6) {
			a.err = errors.New("the server is currently unable to handle the request")
		}
		switch m.Type {
		case autoscalingv2.ResourceMetricSourceType, autoscalingv2.ContainerResourceMetricSourceType:
			if usage == nil {
				usage, unread = d.usage(t, t.load[i], now), a.err
			}
			a.pods, a.err = usage, unread
		case autoscalingv2.PodsMetricSourceType:
			a.custom = d.custom(t, t.load[i], m.Pods.Target.AverageValue.MilliValue(), now)
		case autoscalingv2.ObjectMetricSourceType:
			a.object = &custommetrics.MetricValue{Timestamp: metav1.NewTime(now), Value: d.sum(t, t.load[i], m.Object.Target)}
		case autoscalingv2.ExternalMetricSourceType:
			a.external = &externalmetrics.ExternalMetricValueList{}
			for range d.IntN(8) % 4 {
				a.external.Items = append(a.external.Items, externalmetrics.ExternalMetricValue{
					Timestamp: metav1.NewTime(now), Value: d.sum(t, t.load[i], m.External.Target),
				})
			}
		}
	}
}

// measured are the names of the pods that have samples: most of the target's, and at times one of a pod that is not there.
func (d dice) measured(t *target) (names []string) {
	late := d.in(30)
	for _, name := range slices.Sorted(maps.Keys(t.pods)) {
		if d.in(97) && (!late || d.in(60)) {
			names = append(names, name)
		}
	}
	if d.in(4) {
		names = append(names, "stranger")
	}
	if d.in(3) {
		names = nil
	}
	return names
}

func (d dice) usage(t *target, load float64, now time.Time) *metrics.PodMetricsList {
	list := &metrics.PodMetricsList{}
	for _, name := range d.measured(t) {
		used := func() corev1.ResourceList {
			f := load * (0.8 + 0.4*d.Float64())
			l := corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(int64(100*f), resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(int64(f*(64<<20)), resource.BinarySI),
			}
			if d.in(2) {
				delete(l, pick(d, corev1.ResourceCPU, corev1.ResourceMemory))
			}
			return l
		}
		m := metrics.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Timestamp:  metav1.NewTime(now.Add(-time.Duration(d.IntN(60)) * time.Second)),
			Window:     metav1.Duration{Duration: pick(d, 10*time.Second, 15*time.Second, time.Minute)},
			Containers: []metrics.ContainerMetrics{{Name: "app", Usage: used()}, {Name: "side", Usage: used()}},
		}
		if pod := t.pods[name]; pod != nil && len(pod.Spec.InitContainers) > 0 {
			m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: "sidecar", Usage: used()})
		}
		if d.in(2) {
			m.Containers = m.Containers[:d.IntN(2)]
		}
		list.Items = append(list.Items, m)
	}
	return list
}

func (d dice) custom(t *target, load float64, goal int64, now time.Time) *custommetrics.MetricValueList {
	list := &custommetrics.MetricValueList{}
	for _, name := range d.measured(t) {
		m := custommetrics.MetricValue{
			DescribedObject: corev1.ObjectReference{Namespace: namespace, Name: name, Kind: "Pod"},
			Timestamp:       metav1.NewTime(now.Add(-time.Duration(d.IntN(60)) * time.Second)),
			Value:           *resource.NewMilliQuantity(int64(load*(0.8+0.4*d.Float64())*float64(goal)), resource.DecimalSI),
		}
		if d.in(50) {
			m.WindowSeconds = new(int64(30))
		}
		list.Items = append(list.Items, m)
	}
	return list
}

// sum is the value of a metric of something else than pods.
func (d dice) sum(t *target, load float64, goal autoscalingv2.MetricTarget) resource.Quantity {
	n := 1000.0
	switch {
	case goal.Value != nil:
		n = float64(goal.Value.MilliValue())
	case goal.AverageValue != nil:
		n = float64(goal.AverageValue.MilliValue()) * float64(max(t.replicas, 1))
	}
	return *resource.NewMilliQuantity(int64(load*(0.9+0.2*d.Float64())*n), resource.DecimalSI)
}
