// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// watch has the autoscaler evaluated as soon as its pods use so much, or so little, that the result may be another one.
func (c *controller) watch(key types.NamespacedName, s *state, e *evaluation, pods []*corev1.Pod) {
	if c.usage == nil {
		return
	}
	var bounds []controllers.UsageBound
	for i := range e.decision.Estimates {
		if b, ok := c.bound(e, i); ok {
			bounds = append(bounds, b)
		}
	}
	if len(bounds) == 0 {
		c.unwatch(key, s)
		return
	}
	s.watched = true
	c.usage.Watch(key, &controllers.UsageWatch{Pods: pods, Bounds: bounds, Wake: func() { c.queue.Add(key) }})
}

// unwatch ends the watch of an autoscaler.
func (c *controller) unwatch(key types.NamespacedName, s *state) {
	if s.watched {
		s.watched = false
		c.usage.Watch(key, nil)
	}
}

// unwatchAll ends all watches, when no worker runs.
func (c *controller) unwatchAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, s := range c.states {
		c.unwatch(key, s)
	}
}

// nearest is the distance from 1 of bounds at the least: usage is never quite the same.
const nearest = 0.01

// bound is the range of the usage in which the metric of that index does not ask for other replicas; false: usage of pods is not its
// source. A range that ends where the replicas cannot follow, as at their maximum, has no end there. It has no lower end either where a
// lower recommendation has to wait for its window anyway.
func (c *controller) bound(e *evaluation, i int) (b controllers.UsageBound, ok bool) {
	switch spec := &e.hpa.Spec.Metrics[i]; {
	case spec.Resource != nil:
		b.Resource = spec.Resource.Name
	case spec.ContainerResource != nil:
		b.Resource, b.Container = spec.ContainerResource.Name, spec.ContainerResource.Container
	}
	if b.Resource != corev1.ResourceCPU && b.Resource != corev1.ResourceMemory {
		return b, false
	}
	d, ratio := e.decision, e.decision.Estimates[i].Ratio
	up, down, window := c.settings.Tolerance, c.settings.Tolerance, c.settings.DownscaleStabilization
	if behavior := e.hpa.Spec.Behavior; behavior != nil {
		up, _ = tolerance(behavior.ScaleUp, up, 0)
		down, window = tolerance(behavior.ScaleDown, down, window)
	}
	b.High = 1 + up
	if ratio > 0 && ratio < 1+up {
		b.High = (1 + up) / ratio
	}
	if b.High = max(b.High, 1+nearest); d.Made && d.Desired >= e.hpa.Spec.MaxReplicas && ratio >= 1 {
		b.High = math.Inf(1)
	}
	least := int32(1)
	if m := e.hpa.Spec.MinReplicas; m != nil {
		least = *m
	}
	if window >= c.settings.period || d.Made && d.Desired <= least && ratio <= 1 {
		return b, true
	}
	b.Low = 1 - down
	if ratio > 1-down {
		b.Low = (1 - down) / ratio
	}
	b.Low = min(max(b.Low, 0), 1-nearest)
	return b, true
}

// tolerance returns the tolerance and the stabilization window of rules, where these set them.
func tolerance(rules *autoscalingv2.HPAScalingRules, by float64, window time.Duration) (float64, time.Duration) {
	if rules == nil {
		return by, window
	}
	if rules.Tolerance != nil {
		by = rules.Tolerance.AsApproximateFloat64()
	}
	if rules.StabilizationWindowSeconds != nil {
		window = time.Duration(*rules.StabilizationWindowSeconds) * time.Second
	}
	return by, window
}
