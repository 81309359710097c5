// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"errors"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// Sample is the value of a metric of a pod, in thousandths.
type Sample struct {
	Value  int64
	Time   time.Time
	Window time.Duration // over which it was measured, until Time
}

// Response is what a metrics API answered about one metric of a spec. It is used up by the decision that takes it.
type Response struct {
	Pods   map[string]Sample // by name, where the metric is of pods
	Values []int64           // in thousandths, where it is of something else
	Time   time.Time         // of the first
	Err    error
}

// Metric is the name and the selector of a metric that is not of a resource; nil for one of a resource.
func Metric(spec *autoscalingv2.MetricSpec) *autoscalingv2.MetricIdentifier {
	switch {
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		return &spec.Object.Metric
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		return &spec.Pods.Metric
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		return &spec.External.Metric
	}
	return nil
}

// unwindowed is the window of a custom metric that names none.
const unwindowed = time.Minute

// ReadResource takes an answer of metrics.k8s.io: the usage of a resource by pods, or by one container of each. A pod of which a
// container's usage is not known has no sample.
func ReadResource(list *metrics.PodMetricsList, err error, of corev1.ResourceName, container string) Response {
	if err != nil {
		return Response{Err: fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return Response{Err: errors.New("no metrics returned from resource metrics API")}
	}
	r := Response{Pods: make(map[string]Sample, len(list.Items)), Time: list.Items[0].Timestamp.Time}
	for i := range list.Items {
		if value, known := podUsage(&list.Items[i], of, container); known {
			m := &list.Items[i]
			r.Pods[m.Name] = Sample{Value: value, Time: m.Timestamp.Time, Window: m.Window.Duration}
		}
	}
	return r
}

func podUsage(m *metrics.PodMetrics, of corev1.ResourceName, container string) (sum int64, known bool) {
	for i := range m.Containers {
		c := &m.Containers[i]
		if container != "" && c.Name != container {
			continue
		}
		value, ok := c.Usage[of]
		if !ok || value.Sign() < 0 { // nothing uses less than nothing: the server is wrong
			return 0, false
		}
		sum += value.MilliValue()
		if known = true; container != "" {
			break
		}
	}
	return sum, known
}

// ReadPods takes an answer of custom.metrics.k8s.io about pods.
func ReadPods(list *custommetrics.MetricValueList, err error) Response {
	if err != nil {
		return Response{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return Response{Err: errors.New("no metrics returned from custom metrics API")}
	}
	r := Response{Pods: make(map[string]Sample, len(list.Items)), Time: list.Items[0].Timestamp.Time}
	for i := range list.Items {
		m := &list.Items[i]
		window := unwindowed
		if m.WindowSeconds != nil {
			window = time.Duration(*m.WindowSeconds) * time.Second
		}
		r.Pods[m.DescribedObject.Name] = Sample{Value: m.Value.MilliValue(), Time: m.Timestamp.Time, Window: window}
	}
	return r
}

// ReadObject takes an answer of custom.metrics.k8s.io about one object.
func ReadObject(value *custommetrics.MetricValue, err error) Response {
	if err != nil {
		return Response{Err: fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)}
	}
	return Response{Values: []int64{value.Value.MilliValue()}, Time: value.Timestamp.Time}
}

// ReadExternal takes an answer of external.metrics.k8s.io.
func ReadExternal(list *externalmetrics.ExternalMetricValueList, err error) Response {
	if err != nil {
		return Response{Err: fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)}
	}
	if len(list.Items) == 0 {
		return Response{Err: errors.New("no metrics returned from external metrics API")}
	}
	r := Response{Values: make([]int64, len(list.Items)), Time: list.Items[0].Timestamp.Time}
	for i := range list.Items {
		r.Values[i] = list.Items[i].Value.MilliValue()
	}
	return r
}
