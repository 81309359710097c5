// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"math"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// TestBounds has bounds where another usage would lead to other replicas, and nowhere else.
func TestBounds(t *testing.T) {
	forever, inf := 5*time.Minute, math.Inf(1)
	quick := &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: resource.NewMilliQuantity(500, resource.DecimalSI)},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))},
	}
	for name, c := range map[string]struct {
		ratio     float64
		desired   int32
		window    time.Duration
		behavior  *autoscalingv2.HorizontalPodAutoscalerBehavior
		low, high float64
	}{
		"at the target":               {1, 5, forever, nil, 0, 1.1},
		"below":                       {0.5, 5, forever, nil, 0, 2.2},
		"nearly above":                {1.0999, 5, forever, nil, 0, 1.01},
		"above, as a policy holds":    {2, 5, forever, nil, 0, 1.1},
		"at the maximum":              {2, 10, forever, nil, 0, inf},
		"at the maximum, for another": {0.5, 10, forever, nil, 0, 2.2},
		"not known":                   {0, 5, forever, nil, 0, 1.1},
		"without a window":            {1, 5, 0, nil, 0.9, 1.1},
		"without one, below":          {0.5, 5, 0, nil, 0.9, 2.2},
		"without one, above":          {2, 5, 0, nil, 0.45, 1.1},
		"without one, at the minimum": {0.5, 2, 0, nil, 0, 2.2},
		"a behavior":                  {1, 5, forever, quick, 0.9, 1.5},
	} {
		c2 := &controller{settings: settings{
			period: 15 * time.Second, Settings: calculator.Settings{Tolerance: 0.1, DownscaleStabilization: c.window},
		}}
		e := &evaluation{
			hpa: &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				MinReplicas: new(int32(2)), MaxReplicas: 10, Behavior: c.behavior, Metrics: []autoscalingv2.MetricSpec{
					{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}},
					{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{}},
				},
			}},
			decision: &calculator.Decision{Made: true, Desired: c.desired, Estimates: []calculator.Estimate{{Ratio: c.ratio}, {Ratio: 1}}},
		}
		b, ok := c2.bound(e, 0)
		if near := func(a, b float64) bool { return a == b || math.Abs(a-b) < 1e-9 }; !ok || !near(b.Low, c.low) || !near(b.High, c.high) {
			t.Errorf("%s: from %v to %v, %v; want from %v to %v", name, b.Low, b.High, ok, c.low, c.high)
		}
		if _, ok := c2.bound(e, 1); ok {
			t.Errorf("%s: an external metric has a bound", name)
		}
	}
}
