// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"math"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// record adds an evaluation, whose rescale has been tried, to the log of decisions.
func (c *controller) record(key types.NamespacedName, e *evaluation) {
	if c.log == nil {
		return
	}
	d, spec := e.decision, &e.hpa.Spec
	s := &trace.Scaling{
		Time: e.began.UTC().Format(time.RFC3339Nano), Seconds: c.clock.Since(e.began).Seconds(),
		Target: spec.ScaleTargetRef.Kind + "/" + spec.ScaleTargetRef.Name,
	}
	if e.scale.known() {
		s.Replicas = d.Status().CurrentReplicas
	}
	s.Outcome, s.Message = outcome(d, s.Replicas)
	if d.Made {
		s.Desired = new(d.Desired)
	}
	for i := range d.Estimates {
		s.Metrics = append(s.Metrics, measured(spec, d, i, &e.readings[i], e.began))
	}
	if len(d.Estimates) > 0 && (d.Made || d.Proposed > 0) {
		s.Proposed = new(d.Proposed)
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		s.Limits = append(s.Limits, trace.ScalingLimit{Reason: l.Reason, From: l.From, To: l.To, Detail: c.detail(spec, l)})
	}
	c.log.Add(key, e.hpa.UID, s)
}

// outcome is the outcome of a decision, and its explanation.
func outcome(d *calculator.Decision, replicas int32) (word, message string) {
	switch {
	case !d.Made && d.Err != nil:
		return trace.OutcomeFailed, d.Err.Error()
	case d.Rescale && d.Desired > replicas:
		return trace.OutcomeScaledUp, d.Reason
	case d.Rescale:
		return trace.OutcomeScaledDown, d.Reason
	case len(d.Estimates) == 0:
		return trace.OutcomeDisabled, "scaling is disabled since the replica count of the target is zero"
	case d.Err != nil:
		return trace.OutcomeKept, "some metrics are not known: " + d.Err.Error()
	case len(d.Limits) > 0:
		return trace.OutcomeKept, "windows, policies or bounds leave the replicas that there are"
	}
	return trace.OutcomeKept, "the metrics ask for the replicas that there are"
}

// detail names what limits the replicas.
func (c *controller) detail(spec *autoscalingv2.HorizontalPodAutoscalerSpec, l *calculator.Limit) string {
	switch l.Reason {
	case "ScaleDownStabilized", "ScaleUpStabilized":
		window, up := c.settings.DownscaleStabilization, l.Reason == "ScaleUpStabilized"
		if b := spec.Behavior; b != nil {
			rules := b.ScaleDown
			if up {
				rules, window = b.ScaleUp, 0
			}
			if rules != nil && rules.StabilizationWindowSeconds != nil {
				window = time.Duration(*rules.StabilizationWindowSeconds) * time.Second
			}
		}
		if l.At.IsZero() {
			return fmt.Sprintf("stabilization window of %s", window)
		}
		return fmt.Sprintf("stabilization window of %s: the recommendation of %s holds", window, l.At.UTC().Format(time.RFC3339))
	case "ScaleUpLimit", "ScaleDownLimit":
		switch p := l.Policy; {
		case spec.Behavior == nil:
			return "twice the replicas, or 4, at a time"
		case p == nil:
			return "selectPolicy Disabled"
		default:
			return fmt.Sprintf("policy %s %d in %d s", p.Type, p.Value, p.PeriodSeconds)
		}
	case "TooManyReplicas":
		return fmt.Sprintf("maxReplicas %d", spec.MaxReplicas)
	case "TooFewReplicas":
		return "minReplicas"
	}
	return ""
}

// measured is what one metric of the spec came to.
func measured(spec *autoscalingv2.HorizontalPodAutoscalerSpec, d *calculator.Decision, i int, r *reading,
	began time.Time) trace.ScalingMetric {
	e, of := &d.Estimates[i], &spec.Metrics[i]
	m := trace.ScalingMetric{Type: string(of.Type), Path: r.path, Seconds: r.took.Seconds(), Kept: string(e.Kept)}
	var target autoscalingv2.MetricTarget
	if metric := calculator.Metric(of); metric != nil {
		m.Name = metric.Name
	}
	switch {
	case of.Resource != nil:
		m.Name, target = string(of.Resource.Name), of.Resource.Target
	case of.ContainerResource != nil:
		m.Name, target = string(of.ContainerResource.Name)+" of container "+of.ContainerResource.Container, of.ContainerResource.Target
	case of.Pods != nil:
		target = of.Pods.Target
	case of.Object != nil:
		m.Name += " of " + of.Object.DescribedObject.Kind + "/" + of.Object.DescribedObject.Name
		target = of.Object.Target
	case of.External != nil:
		target = of.External.Target
	}
	m.Target = text(autoscalingv2.MetricValueStatus{
		Value: target.Value, AverageValue: target.AverageValue, AverageUtilization: target.AverageUtilization,
	})
	if at := r.response.Time; !at.IsZero() {
		m.AgeSeconds = new(began.Sub(at).Seconds())
	}
	if e.Ready+e.Unready+e.Missing+e.Ignored > 0 {
		m.Pods = &trace.ScalingPods{Ready: e.Ready, Unready: e.Unready, Missing: e.Missing, Ignored: e.Ignored}
	}
	if e.Err != nil {
		m.Error = e.Err.Error()
		return m
	}
	m.Value, m.Proposed = text(current(&d.Status().CurrentMetrics[i])), new(e.Replicas)
	if !math.IsNaN(e.Ratio) && !math.IsInf(e.Ratio, 0) {
		m.Ratio = new(e.Ratio)
	}
	return m
}

// current is the value in a status.
func current(s *autoscalingv2.MetricStatus) (v autoscalingv2.MetricValueStatus) {
	switch {
	case s.Resource != nil:
		return s.Resource.Current
	case s.ContainerResource != nil:
		return s.ContainerResource.Current
	case s.Pods != nil:
		return s.Pods.Current
	case s.Object != nil:
		return s.Object.Current
	case s.External != nil:
		return s.External.Current
	}
	return v
}

// text is a value as kubectl shows it.
func text(v autoscalingv2.MetricValueStatus) string {
	var parts []string
	if v.AverageUtilization != nil {
		parts = append(parts, fmt.Sprintf("%d%%", *v.AverageUtilization))
	}
	if v.AverageValue != nil {
		parts = append(parts, v.AverageValue.String()+" (avg)")
	}
	if v.Value != nil {
		parts = append(parts, v.Value.String())
	}
	return strings.Join(parts, ", ")
}
