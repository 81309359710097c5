// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"errors"
	"fmt"
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measurement is what one metric of the spec comes to.
type measurement struct {
	*Decision
	spec     *autoscalingv2.MetricSpec
	pods     []*corev1.Pod
	response Response
	status   *autoscalingv2.MetricStatus                    // to fill
	estimate *Estimate                                      // to fill
	failure  autoscalingv2.HorizontalPodAutoscalerCondition // where there is no proposal
}

// propose fills in the proposal of the metric.
func (m *measurement) propose() {
	p := m.estimate
	switch s := m.spec; s.Type {
	case autoscalingv2.ObjectMetricSourceType:
		p.Replicas, p.Metric, p.Err = m.object(s.Object)
		p.Err = wrap("failed to get object metric value: %w", p.Err)
	case autoscalingv2.PodsMetricSourceType:
		p.Replicas, p.Metric, p.Err = m.custom(s.Pods)
		p.Err = wrap("failed to get pods metric value: %w", p.Err)
	case autoscalingv2.ResourceMetricSourceType:
		p.Replicas, p.Metric, p.Err = m.ofResource(s.Resource)
		p.Err = wrap("failed to get %s resource metric value: %w", p.Err, s.Resource.Name)
	case autoscalingv2.ContainerResourceMetricSourceType:
		p.Replicas, p.Metric, p.Err = m.ofContainer(s.ContainerResource)
		p.Err = wrap("failed to get %s container metric value: %w", p.Err, s.ContainerResource.Container)
	case autoscalingv2.ExternalMetricSourceType:
		p.Replicas, p.Metric, p.Err = m.external(s.External)
		p.Err = wrap("failed to get %s external metric value: %w", p.Err, s.External.Metric.Name)
	default:
		p.Err = m.failed("InvalidMetricSourceType", fmt.Errorf("unknown metric source type %q%w", string(s.Type), ErrSpec))
	}
}

// wrap is an error in upstream's words; nil where err is.
func wrap(format string, err error, of ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format, append(of, err)...)
}

// failed notes why there is no proposal, and returns err.
func (m *measurement) failed(reason string, err error) error {
	if err == nil {
		return nil
	}
	m.warn(reason, err.Error())
	m.failure = autoscalingv2.HorizontalPodAutoscalerCondition{
		Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Reason: reason,
		Message: fmt.Sprintf("the HPA was unable to compute the replica count: %v", err),
	}
	return err
}

// ofResource proposes by a resource that pods use.
func (m *measurement) ofResource(s *autoscalingv2.ResourceMetricSource) (int32, string, error) {
	n, value, metric, err := m.resource(s.Target, s.Name, "")
	if err != nil {
		return 0, "", m.failed("FailedGetResourceMetric", err)
	}
	*m.status = autoscalingv2.MetricStatus{
		Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricStatus{Name: s.Name, Current: value},
	}
	return n, metric, nil
}

// ofContainer proposes by a resource that one container of each pod uses.
func (m *measurement) ofContainer(s *autoscalingv2.ContainerResourceMetricSource) (int32, string, error) {
	n, value, metric, err := m.resource(s.Target, s.Name, s.Container)
	if err != nil {
		return 0, "", m.failed("FailedGetContainerResourceMetric", err)
	}
	*m.status = autoscalingv2.MetricStatus{
		Type:              autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container, Current: value},
	}
	return n, metric, nil
}

func (m *measurement) resource(target autoscalingv2.MetricTarget, name corev1.ResourceName,
	container string) (n int32, value autoscalingv2.MetricValueStatus, metric string, err error) {
	read := wrap("unable to get metrics for resource %s: %w", m.response.Err, name)
	if target.AverageValue != nil {
		metric = fmt.Sprintf("%s resource", name)
		var average int64
		if err = read; err == nil {
			n, average, err = m.plain(target.AverageValue.MilliValue(), name)
		}
		value.AverageValue = amount(name, average)
		return n, value, metric, wrap("failed to get %s usage: %w", err, name)
	}
	if target.AverageUtilization == nil {
		return 0, value, "", errors.New("invalid resource metric source: " +
			"neither an average utilization target nor an average value (usage) target was set")
	}
	metric = fmt.Sprintf("%s resource utilization (percentage of request)", name)
	if m.spec.Type == autoscalingv2.ContainerResourceMetricSourceType {
		metric = fmt.Sprintf("%s container resource utilization (percentage of request)", name)
	}
	var u usage
	if err = read; err == nil {
		n, u, err = m.utilization(*target.AverageUtilization, name, container)
	}
	value.AverageUtilization, value.AverageValue = &u.percent, amount(name, u.average)
	return n, value, metric, wrap("failed to get %s utilization: %w", err, name)
}

// amount is a quantity as metrics-server gives it.
func amount(of corev1.ResourceName, milli int64) *resource.Quantity {
	if of == corev1.ResourceMemory {
		return resource.NewMilliQuantity(milli, resource.BinarySI)
	}
	return resource.NewMilliQuantity(milli, resource.DecimalSI)
}

// utilization proposes by the pods' usage as a percentage of their requests.
func (m *measurement) utilization(target int32, of corev1.ResourceName, container string) (int32, usage, error) {
	g, err := m.group(of)
	if err != nil {
		return 0, usage{}, err
	}
	requests, err := podRequests(m.pods, container, of)
	if err != nil {
		return 0, usage{}, err
	}
	u, err := utilization(g.samples, requests, target)
	if err != nil {
		return 0, usage{}, err
	}
	n, err := m.replicas(&g, u,
		func(pod string) int64 { return requests[pod] * int64(max(100, target)) / 100 },
		func() (usage, error) { return utilization(g.samples, requests, target) })
	return n, u, err
}

// plain proposes by the average of the pods' samples.
func (m *measurement) plain(target int64, of corev1.ResourceName) (int32, int64, error) {
	g, err := m.group(of)
	if err != nil {
		return 0, 0, err
	}
	u := plain(g.samples, target)
	n, err := m.replicas(&g, u,
		func(string) int64 { return target },
		func() (usage, error) { return plain(g.samples, target), nil })
	return n, u.average, err
}

// custom proposes by a metric that each pod has.
func (m *measurement) custom(s *autoscalingv2.PodsMetricSource) (int32, string, error) {
	const reason = "FailedGetPodsMetric"
	if _, err := metav1.LabelSelectorAsSelector(s.Metric.Selector); err != nil {
		return 0, "", m.failed(reason, err)
	}
	if err := wrap("unable to get metric %s: %w", m.response.Err, s.Metric.Name); err != nil {
		return 0, "", m.failed(reason, err)
	}
	n, average, err := m.plain(s.Target.AverageValue.MilliValue(), "")
	if err != nil {
		return 0, "", m.failed(reason, err)
	}
	*m.status = autoscalingv2.MetricStatus{
		Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricStatus{Metric: s.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: amount("", average)}},
	}
	return n, fmt.Sprintf("pods metric %s", s.Metric.Name), nil
}

// object proposes by a metric of one object.
func (m *measurement) object(s *autoscalingv2.ObjectMetricSource) (n int32, metric string, err error) {
	const reason = "FailedGetObjectMetric"
	if _, err := metav1.LabelSelectorAsSelector(s.Metric.Selector); err != nil {
		return 0, "", m.failed(reason, err)
	}
	unread := wrap("unable to get metric %s on %s %s/%s: %w", m.response.Err, s.Metric.Name, s.DescribedObject.Kind, m.hpa.Namespace,
		s.DescribedObject.Name)
	sum := int64(0)
	if len(m.response.Values) > 0 {
		sum = m.response.Values[0]
	}
	status := &autoscalingv2.ObjectMetricStatus{DescribedObject: s.DescribedObject, Metric: s.Metric}
	switch target := s.Target; {
	case target.Type == autoscalingv2.ValueMetricType && target.Value != nil:
		if err = unread; err == nil {
			n, err = m.byRatio(float64(sum) / float64(target.Value.MilliValue()))
		}
		if err != nil {
			return 0, "", m.failed(reason, err)
		}
		status.Current.Value = amount("", sum)
		metric = fmt.Sprintf("%s metric %s", s.DescribedObject.Kind, s.Metric.Name)
	case target.Type == autoscalingv2.AverageValueMetricType && target.AverageValue != nil:
		if unread != nil {
			return 0, "", wrap("failed to get %s object metric: %w", m.failed(reason, unread), s.Metric.Name)
		}
		n = m.byAverage(sum, target.AverageValue.MilliValue())
		status.Current.AverageValue = amount("", m.average(sum))
		metric = fmt.Sprintf("external metric %s(%+v)", s.Metric.Name, s.Metric.Selector) // upstream's words
	default:
		return 0, "", m.failed(reason, errors.New("invalid object metric source: "+
			"neither a value target nor an average value target was set"))
	}
	*m.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ObjectMetricSourceType, Object: status}
	return n, metric, nil
}

// external proposes by the sum of the values of a metric of something outside the cluster.
func (m *measurement) external(s *autoscalingv2.ExternalMetricSource) (n int32, metric string, err error) {
	const reason = "FailedGetExternalMetric"
	_, err = metav1.LabelSelectorAsSelector(s.Metric.Selector)
	if err == nil {
		err = wrap("unable to get external metric %s/%s/%+v: %s", m.response.Err, m.hpa.Namespace, s.Metric.Name, s.Metric.Selector)
	}
	sum := total(m.response.Values)
	status := &autoscalingv2.ExternalMetricStatus{Metric: s.Metric}
	switch target := s.Target; {
	case target.AverageValue != nil:
		if err != nil {
			return 0, "", wrap("failed to get %s external metric: %w", m.failed(reason, err), s.Metric.Name)
		}
		n = m.byAverage(sum, target.AverageValue.MilliValue())
		status.Current.AverageValue = amount("", m.average(sum))
	case target.Value != nil:
		if err == nil {
			n, err = m.byRatio(float64(sum) / float64(target.Value.MilliValue()))
		}
		if err != nil {
			return 0, "", wrap("failed to get external metric %s: %w", m.failed(reason, err), s.Metric.Name)
		}
		status.Current.Value = amount("", sum)
	default:
		return 0, "", m.failed(reason, errors.New("invalid external metric source: "+
			"neither a value target nor an average value target was set"))
	}
	*m.status = autoscalingv2.MetricStatus{Type: autoscalingv2.ExternalMetricSourceType, External: status}
	return n, fmt.Sprintf("external metric %s(%+v)", s.Metric.Name, s.Metric.Selector), nil
}

// total is a sum that stops at the greatest number.
func total(values []int64) (sum int64) {
	for _, v := range values {
		if v > 0 && sum > math.MaxInt64-v {
			return math.MaxInt64
		}
		sum += v
	}
	return sum
}

// byRatio proposes by the ratio of a value to its target: so many times the pods that are ready. Without pods it is the ratio itself.
func (m *measurement) byRatio(ratio float64) (int32, error) {
	m.estimate.Ratio = ratio
	switch current := m.scale.Replicas; {
	case current == 0:
		return ceil(ratio), nil
	case m.settings.tolerances(m.hpa.Spec.Behavior).include(ratio):
		m.estimate.Kept = Tolerated
		return current, nil
	}
	ready, err := readyPods(m.pods)
	if err != nil {
		return 0, fmt.Errorf("unable to calculate ready pods: %w", err)
	}
	return ceil(ratio * float64(ready)), nil
}

// byAverage proposes as many pods as share a value by the target.
func (m *measurement) byAverage(sum, target int64) int32 {
	n := m.scale.StatusReplicas
	ratio := float64(sum) / (float64(target) * float64(n))
	if n != 0 {
		m.estimate.Ratio = ratio
	}
	if !m.settings.tolerances(m.hpa.Spec.Behavior).include(ratio) {
		return ceil(float64(sum) / float64(target))
	}
	m.estimate.Kept = Tolerated
	return n
}

// average is the share of each pod that there is.
func (m *measurement) average(sum int64) int64 {
	if m.scale.StatusReplicas == 0 || float64(sum) >= math.MaxInt64 {
		return sum
	}
	return int64(math.Ceil(float64(sum) / float64(m.scale.StatusReplicas)))
}
