// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	defaults "k8s.io/kubernetes/pkg/apis/autoscaling/v2"
)

const namespace = "default"

// dice makes worlds. All of a world follows from its seed.
type dice struct{ *rand.Rand }

func newDice(seed uint64) dice { return dice{rand.New(rand.NewPCG(seed, 1))} }

// in tells true so many times out of a hundred.
func (d dice) in(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d dice, of ...T) T { return of[d.IntN(len(of))] }

// target is what an autoscaler scales.
type target struct {
	number           int
	known            bool // its kind has a resource
	replicas, status int32
	selector         string
	unread, unset    error // reading or writing the scale fails so
	pods             map[string]*corev1.Pod
	made             int

	load    []float64 // by metric: how much of the target value a pod uses
	answers []answer  // by metric: what the servers say of it
}

func (t *target) name() string { return fmt.Sprintf("target-%d", t.number) }

func (t *target) autoscaler() string { return fmt.Sprintf("hpa-%d", t.number) }

// autoscaler makes the autoscaler of a target.
func (d dice) autoscaler(t *target) *autoscalingv2.HorizontalPodAutoscaler {
	h := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: t.autoscaler(), UID: types.UID(t.autoscaler()), Generation: 1,
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: t.name()},
			MaxReplicas:    1 + d.Int32N(20),
		},
	}
	if !t.known {
		h.Spec.ScaleTargetRef.Kind = fmt.Sprintf("Unknown%d", t.number)
	}
	for range 1 + d.IntN(3) {
		h.Spec.Metrics = append(h.Spec.Metrics, d.metric(len(h.Spec.Metrics)))
	}
	d.bounds(h)
	if d.in(60) {
		h.Spec.Behavior = d.behavior()
	}
	defaults.SetDefaults_HorizontalPodAutoscaler(h)
	return h
}

func (d dice) bounds(h *autoscalingv2.HorizontalPodAutoscaler) {
	h.Spec.MinReplicas = nil
	if d.in(70) {
		h.Spec.MinReplicas = new(d.Int32N(min(h.Spec.MaxReplicas, 4) + 1))
	}
	outside := false
	for _, m := range h.Spec.Metrics {
		outside = outside || m.Object != nil || m.External != nil
	}
	if !outside && h.Spec.MinReplicas != nil && *h.Spec.MinReplicas == 0 {
		h.Spec.MinReplicas = new(int32(1))
	}
}

// quantity is a target value of a metric.
func (d dice) quantity() *resource.Quantity {
	return resource.NewMilliQuantity(pick[int64](d, 1, 50, 333, 1000, 12_345, 500_000, 1<<30), resource.DecimalSI)
}

// used is a target of what a pod uses.
func (d dice) used(of corev1.ResourceName) *resource.Quantity {
	if of == corev1.ResourceMemory {
		return resource.NewQuantity(pick[int64](d, 10<<20, 64<<20, 128<<20, 1<<30), resource.BinarySI)
	}
	return resource.NewMilliQuantity(pick[int64](d, 1, 50, 100, 333), resource.DecimalSI)
}

func (d dice) metric(i int) (m autoscalingv2.MetricSpec) {
	name := pick(d, corev1.ResourceCPU, corev1.ResourceCPU, corev1.ResourceMemory)
	identifier := autoscalingv2.MetricIdentifier{Name: fmt.Sprintf("metric-%d", i)}
	if d.in(30) {
		identifier.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "a"}}
	}
	if d.in(3) {
		identifier.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "queue", Operator: "Near"}}}
	}
	value := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: d.quantity()}
	average := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: d.quantity()}
	percent := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType}
	percent.AverageUtilization = new(pick[int32](d, 10, 50, 80, 100, 150))
	switch m.Type = pick(d, autoscalingv2.ResourceMetricSourceType, autoscalingv2.ContainerResourceMetricSourceType,
		autoscalingv2.PodsMetricSourceType, autoscalingv2.ObjectMetricSourceType, autoscalingv2.ExternalMetricSourceType); m.Type {
	case autoscalingv2.ResourceMetricSourceType:
		average.AverageValue = d.used(name)
		m.Resource = &autoscalingv2.ResourceMetricSource{Name: name, Target: pick(d, average, percent, percent)}
		if d.in(2) {
			m.Resource.Target = value
		}
	case autoscalingv2.ContainerResourceMetricSourceType:
		average.AverageValue = d.used(name)
		m.ContainerResource = &autoscalingv2.ContainerResourceMetricSource{
			Name: name, Container: pick(d, "app", "app", "side", "sidecar", "nobody"), Target: pick(d, average, percent, percent),
		}
	case autoscalingv2.PodsMetricSourceType:
		m.Pods = &autoscalingv2.PodsMetricSource{Metric: identifier, Target: average}
	case autoscalingv2.ObjectMetricSourceType:
		m.Object = &autoscalingv2.ObjectMetricSource{Metric: identifier, Target: pick(d, value, average), DescribedObject: pick(d,
			autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "ignored"},
			autoscalingv2.CrossVersionObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "Ingress", Name: "web"})}
		if d.in(2) {
			m.Object.Target = percent
		}
	case autoscalingv2.ExternalMetricSourceType:
		m.External = &autoscalingv2.ExternalMetricSource{Metric: identifier, Target: pick(d, value, average)}
		if d.in(2) {
			m.External.Target = percent
		}
	}
	return m
}

func (d dice) behavior() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	rules := func() *autoscalingv2.HPAScalingRules {
		if d.in(20) {
			return nil
		}
		r := &autoscalingv2.HPAScalingRules{}
		if d.in(60) {
			r.StabilizationWindowSeconds = new(pick[int32](d, 0, 10, 30, 60, 120))
		}
		if d.in(60) {
			r.SelectPolicy = new(pick(d, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect,
				autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect, autoscalingv2.DisabledPolicySelect))
		}
		for range d.IntN(3) {
			r.Policies = append(r.Policies, autoscalingv2.HPAScalingPolicy{
				Type:  pick(d, autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy),
				Value: pick[int32](d, 1, 2, 5, 10, 50, 100, 150), PeriodSeconds: pick[int32](d, 1, 15, 30, 60, 120),
			})
		}
		if d.in(40) {
			r.Tolerance = resource.NewMilliQuantity(pick[int64](d, 0, 20, 100, 300, 1000), resource.DecimalSI)
		}
		return r
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(), ScaleDown: rules()}
}

// pod makes a pod of a target that has been there for a while.
func (d dice) pod(t *target, now time.Time, age time.Duration) *corev1.Pod {
	t.made++
	name := fmt.Sprintf("pod-%d-%d", t.number, t.made)
	request := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	c := corev1.Container{Name: "app", Resources: corev1.ResourceRequirements{Requests: request}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": fmt.Sprint("web-", t.number)},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c, c}},
	}
	pod.Spec.Containers[1].Name = "side"
	if d.in(5) {
		pod.Spec.Containers[d.IntN(2)].Resources.Requests = nil
	}
	if d.in(30) {
		always := corev1.ContainerRestartPolicyAlways
		c.Name, c.RestartPolicy = "sidecar", &always
		pod.Spec.InitContainers = []corev1.Container{{Name: "init"}, c}
	}
	if d.in(10) {
		pod.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}
		if d.in(50) {
			pod.Spec.Resources.Requests[corev1.ResourceMemory] = resource.MustParse("200Mi")
		}
	}
	start := metav1.NewTime(now.Add(-age))
	pod.Status.Phase, pod.Status.StartTime = corev1.PodRunning, &start
	d.ready(pod, corev1.ConditionTrue, now.Add(-age/2))
	return pod
}

func (d dice) ready(pod *corev1.Pod, status corev1.ConditionStatus, at time.Time) {
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
		{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(at)},
	}
}

// happens changes a pod.
func (d dice) happens(pod *corev1.Pod, now time.Time) {
	switch d.IntN(8) {
	case 0:
		pod.Status.Phase = corev1.PodPending
	case 1:
		pod.Status.Phase = corev1.PodFailed
	case 2:
		gone := metav1.NewTime(now)
		pod.DeletionTimestamp, pod.Finalizers = &gone, []string{"example.com/wait"}
	case 3:
		d.ready(pod, corev1.ConditionFalse, now.Add(-time.Duration(d.IntN(600))*time.Second))
	case 4:
		d.ready(pod, corev1.ConditionTrue, now.Add(-time.Duration(d.IntN(120))*time.Second))
	case 5:
		pod.Status.Conditions = nil
	case 6:
		pod.Status.StartTime = nil
	case 7:
		pod.Status.Phase = corev1.PodRunning
		d.ready(pod, corev1.ConditionUnknown, now)
	}
}

// fill gives a target as many pods as it asks for, more or less.
func (d dice) fill(t *target, now time.Time, age time.Duration) {
	want := int(t.replicas)
	if d.in(10) {
		want = max(0, want-d.IntN(3))
	}
	for _, name := range slices.Sorted(maps.Keys(t.pods)) {
		if len(t.pods) > want {
			delete(t.pods, name)
		}
	}
	for len(t.pods) < want {
		pod := d.pod(t, now, time.Duration(d.Int64N(int64(age)+1)))
		t.pods[pod.Name] = pod
	}
	t.status = int32(len(t.pods))
}
