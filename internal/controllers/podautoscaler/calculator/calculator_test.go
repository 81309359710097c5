// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mortise-dev/mortise/internal/golden"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var usual = Settings{
	Tolerance: 0.1, DownscaleStabilization: 5 * time.Minute, CPUInitializationPeriod: 5 * time.Minute, InitialReadinessDelay: 30 * time.Second,
}

// scenario is an autoscaler that is evaluated several times.
type scenario struct {
	t       *testing.T
	out     strings.Builder
	hpa     *autoscalingv2.HorizontalPodAutoscaler
	history History
	now     time.Time
	scale   Scale
	pods    []*corev1.Pod
	refused error // writing the scale fails so
}

// scaler makes an autoscaler of at most ten replicas.
func scaler(metrics ...autoscalingv2.MetricSpec) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Generation: 3},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    10, Metrics: metrics,
		},
	}
}

func cpu(percent int32) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
	}}
}

func queue(average string) autoscalingv2.MetricSpec {
	q := resource.MustParse(average)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &q},
	}}
}

func rules(window int32, selects autoscalingv2.ScalingPolicySelect,
	policies ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
	return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &selects, Policies: policies}
}

func pods(value, seconds int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: value, PeriodSeconds: seconds}
}

func percent(value, seconds int32) autoscalingv2.HPAScalingPolicy {
	return autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: value, PeriodSeconds: seconds}
}

// podsFor makes so many ready pods, an hour old, that ask for 100m.
func podsFor(n int) (all []*corev1.Pod) {
	start := metav1.NewTime(began.Add(-time.Hour))
	for i := range n {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name, pod.Labels = "default", fmt.Sprint("web-", i), map[string]string{"app": "web"}
		pod.Spec.Containers = []corev1.Container{{Name: "app"}}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &start, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: start},
		}}
		all = append(all, pod)
	}
	return all
}

func (s *scenario) begin(hpa *autoscalingv2.HorizontalPodAutoscaler, replicas int32) {
	s.history = History{}
	s.hpa, s.now, s.scale = hpa, began, Scale{Replicas: replicas, StatusReplicas: replicas, Selector: "app=web"}
	s.pods = podsFor(int(replicas))
}

// used is a reading of processor time: of the first pods, in thousandths.
func (s *scenario) used(milli ...int64) Response {
	r := Response{Pods: map[string]Sample{}}
	for i, m := range milli {
		r.Pods[fmt.Sprint("web-", i)] = Sample{Value: m, Time: s.now, Window: 10 * time.Second}
	}
	return r
}

// evaluate evaluates the autoscaler and writes down what comes of it. The target follows at once.
func (s *scenario) evaluate(responses ...Response) {
	d := Begin(s.hpa, usual, &s.history, s.now)
	d.Found(s.scale)
	if d.NeedsMetrics() {
		if _, ok := d.Selector(); ok {
			d.Decide(s.pods, responses)
		}
	}
	before := s.scale.Replicas
	if d.Rescale {
		d.Rescaled(s.refused)
	}
	s.hpa.Status = *d.Status()
	fmt.Fprintf(&s.out, "+%-6v %d", s.now.Sub(began), before)
	if d.Made && d.Desired != before {
		fmt.Fprintf(&s.out, " → %d", d.Desired)
		s.scale.Replicas, s.scale.StatusReplicas = d.Desired, d.Desired
		s.pods = podsFor(int(d.Desired))
	}
	for _, p := range d.Estimates {
		if p.Err == nil {
			fmt.Fprintf(&s.out, ", %s: %d", p.Metric, p.Replicas)
		}
	}
	s.out.WriteString("\n")
	for _, c := range s.hpa.Status.Conditions {
		fmt.Fprintf(&s.out, "  %s %s %s\n", c.Type, c.Status, c.Reason)
	}
	for _, e := range d.Events {
		fmt.Fprintf(&s.out, "  event %s %s: %s\n", e.Type, e.Reason, e.Message)
	}
	if d.Err != nil {
		fmt.Fprintf(&s.out, "  error %v\n", d.Err)
	}
}

func (s *scenario) pass(d time.Duration) { s.now = s.now.Add(d) }

// scenarios are what testdata/scenarios.golden shows, in order.
var scenarios = []struct {
	name string
	play func(*scenario)
}{
	{"within the tolerance", func(s *scenario) {
		s.begin(scaler(cpu(50)), 2)
		s.evaluate(s.used(54, 54))
	}},
	{"up by the ratio, no faster than twice", func(s *scenario) {
		s.begin(scaler(cpu(50)), 3)
		s.evaluate(s.used(150, 150, 150))
	}},
	{"down after the window", func(s *scenario) {
		s.begin(scaler(cpu(50)), 4)
		s.evaluate(s.used(10, 10, 10, 10))
		s.pass(5 * time.Minute)
		s.evaluate(s.used(10, 10, 10, 10))
		s.pass(time.Second)
		s.evaluate(s.used(10, 10, 10, 10))
	}},
	{"a pod without a sample: idle on the way up, busy on the way down", func(s *scenario) {
		s.begin(scaler(cpu(50)), 3)
		s.evaluate(s.used(100, 100))
		s.begin(scaler(cpu(50)), 3)
		s.evaluate(s.used(10, 10))
	}},
	{"a pod that starts", func(s *scenario) {
		s.begin(scaler(cpu(50)), 2)
		start := metav1.NewTime(s.now.Add(-time.Minute))
		s.pods[1].Status.StartTime, s.pods[1].Status.Conditions[0].Status = &start, corev1.ConditionFalse
		s.evaluate(s.used(90, 1000))
	}},
	{"pods that go, fail or wait", func(s *scenario) {
		s.begin(scaler(cpu(50)), 4)
		gone := metav1.NewTime(s.now)
		s.pods[1].DeletionTimestamp, s.pods[2].Status.Phase, s.pods[3].Status.Phase = &gone, corev1.PodFailed, corev1.PodPending
		s.evaluate(s.used(100, 0, 0, 0))
	}},
	{"no pods, no requests, no samples", func(s *scenario) {
		s.begin(scaler(cpu(50)), 2)
		s.evaluate(Response{Err: errors.New("unable to fetch metrics from resource metrics API: it is down")})
		s.pods[0].Spec.Containers[0].Resources.Requests = nil
		s.evaluate(s.used(1, 1))
		s.evaluate(s.used())
		s.pods = nil
		s.evaluate(s.used(1, 1))
	}},
	{"one metric that cannot be read prevents the way down only", func(s *scenario) {
		s.begin(scaler(cpu(50), queue("10")), 2)
		s.evaluate(s.used(100, 100), Response{Err: errors.New("it is down")})
		s.begin(scaler(cpu(50), queue("10")), 4)
		s.evaluate(s.used(10, 10, 10, 10), Response{Err: errors.New("it is down")})
	}},
	{"to zero and back", func(s *scenario) {
		h := scaler(queue("10"))
		h.Spec.MinReplicas = new(int32)
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(0, autoscalingv2.MaxChangePolicySelect, pods(4, 15), percent(100, 15)),
			ScaleDown: rules(0, autoscalingv2.MaxChangePolicySelect, percent(100, 15)),
		}
		s.begin(h, 2)
		s.evaluate(Response{Values: []int64{0}})
		s.pass(15 * time.Second)
		s.evaluate(Response{Values: []int64{0}})
		s.pass(15 * time.Second)
		s.evaluate(Response{Values: []int64{35_000}})
	}},
	{"scaled to zero by another client", func(s *scenario) {
		s.begin(scaler(queue("10")), 0)
		s.evaluate(Response{Values: []int64{35_000}})
	}},
	{"policies", func(s *scenario) {
		h := scaler(queue("10"))
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(0, autoscalingv2.MinChangePolicySelect, pods(2, 60), percent(100, 60)),
			ScaleDown: rules(0, autoscalingv2.MaxChangePolicySelect, pods(1, 30)),
		}
		s.begin(h, 1)
		for range 4 {
			s.evaluate(Response{Values: []int64{900_000}})
			s.pass(30 * time.Second)
		}
		for range 3 {
			s.evaluate(Response{Values: []int64{0}})
			s.pass(30 * time.Second)
		}
	}},
	{"a window on the way up", func(s *scenario) {
		h := scaler(queue("10"))
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   rules(60, autoscalingv2.MaxChangePolicySelect, pods(10, 15)),
			ScaleDown: rules(0, autoscalingv2.DisabledPolicySelect),
		}
		s.begin(h, 1)
		s.evaluate(Response{Values: []int64{50_000}})
		s.pass(60 * time.Second)
		s.evaluate(Response{Values: []int64{40_000}})
		s.pass(15 * time.Second)
		s.evaluate(Response{Values: []int64{0}})
	}},
	{"out of bounds", func(s *scenario) {
		s.begin(scaler(cpu(50)), 12)
		s.evaluate()
		h := scaler(cpu(50))
		h.Spec.MinReplicas = new(int32(4))
		s.begin(h, 2)
		s.evaluate()
	}},
	{"the scale cannot be written", func(s *scenario) {
		s.begin(scaler(cpu(50)), 12)
		s.refused = errors.New("it may not be written")
		s.evaluate()
	}},
	{"no selector, and one that is none", func(s *scenario) {
		s.begin(scaler(cpu(50)), 2)
		s.scale.Selector = ""
		s.evaluate()
		s.scale.Selector = "app in ("
		s.evaluate()
	}},
	{"more than there are numbers", func(s *scenario) {
		s.begin(scaler(queue("1m")), 2)
		s.evaluate(Response{Values: []int64{1 << 62, 1 << 62, 1 << 62}})
	}},
}

func TestScenarios(t *testing.T) {
	var got strings.Builder
	for _, c := range scenarios {
		s := &scenario{t: t}
		c.play(s)
		fmt.Fprintf(&got, "# %s\n%s\n", c.name, s.out.String())
	}
	const file = "testdata/scenarios.golden"
	golden.Compare(t, file, got.String())
}

// TestTargets: what cannot be found is told in the condition AbleToScale, and is the spec's fault or not.
func TestTargets(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*Decision, error)
		want string
		spec bool
	}{
		"version": {(*Decision).InvalidTarget, "invalid API version in scale target reference: cause", true},
		"kind":    {(*Decision).UnknownTarget, "unable to determine resource for scale target reference: cause", false},
		"scale":   {(*Decision).NotFound, "failed to query scale subresource for Deployment/default/web: cause", false},
	} {
		d := Begin(scaler(cpu(50)), usual, &History{}, began)
		c.end(d, errors.New("cause"))
		if d.Err.Error() != c.want || errors.Is(d.Err, ErrSpec) != c.spec || d.Rescale || d.NeedsMetrics() {
			t.Errorf("%s: %v", name, d.Err)
		}
		if got := d.Status().Conditions[0]; got.Reason != "FailedGetScale" || got.LastTransitionTime.Time != began ||
			got.Message != "the HPA controller was unable to get the target's current scale: cause" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestSelectors: autoscalers that select the same pods find each other until one is gone.
func TestSelectors(t *testing.T) {
	var s Selectors
	all := podsFor(3)
	app := labels.SelectorFromSet(labels.Set{"app": "web"})
	if !s.Add("default", "b") || s.Add("default", "b") || s.Set("default", "a", app) || s.Set("other", "b", app) {
		t.Error("wrong about what is there")
	}
	s.Add("default", "a")
	s.Add("other", "c")
	s.Set("other", "c", app)
	s.Set("default", "b", app)
	if got := s.Matching("default", all); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("%v", got)
	}
	s.Set("default", "a", app)
	if got := fmt.Sprint(s.Matching("default", all)); got != "[{a default} {b default}]" {
		t.Error(got)
	}
	s.Remove("default", "a")
	if got := s.Matching("default", all); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
