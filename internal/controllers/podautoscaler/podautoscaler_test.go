// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler"
)

// fakeMetrics answers questions for metrics in place of the servers behind the cluster's.
type fakeMetrics struct {
	mu      sync.Mutex
	answers map[string]string // by the last part of the path: JSON; "hang" never answers
	scales  int               // questions for scales
}

func (f *fakeMetrics) set(last, answer string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.answers == nil {
		f.answers = map[string]string{}
	}
	f.answers[last] = answer
}

// behind is the fake in front of a transport.
func (f *fakeMetrics) behind(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/scale") && r.Method == http.MethodGet {
			f.mu.Lock()
			f.scales++
			f.mu.Unlock()
		}
		if !strings.Contains(r.URL.Path, "metrics.k8s.io") {
			return next.RoundTrip(r)
		}
		f.mu.Lock()
		answer, known := f.answers[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		f.mu.Unlock()
		if answer == "hang" {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		w := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
		if !known {
			w.StatusCode = http.StatusNotFound
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"the server could not find it"}`
		}
		w.Body = io.NopCloser(bytes.NewReader([]byte(answer)))
		return w, nil
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// rig is a cluster with the controller on fake metrics.
type rig struct {
	*testing.T
	ctx     context.Context
	client  kubernetes.Interface
	dynamic dynamic.Interface
	config  *rest.Config
	metrics *fakeMetrics
	usage   fakeUsage
}

// fakeUsage hands the watches of usage to the test; nil: one that ended.
type fakeUsage chan *controllers.UsageWatch

// Read implements controllers.PodUsage: the API is asked.
func (f fakeUsage) Read([]*corev1.Pod) *metricsv1beta1.PodMetricsList { return nil }

// Watch implements controllers.PodUsage.
func (f fakeUsage) Watch(_ types.NamespacedName, of *controllers.UsageWatch) {
	select {
	case f <- of:
	default: // the test does not look at them
	}
}

// newRig starts a cluster.
func newRig(ctx context.Context, t *testing.T, s *embed.Server) *rig {
	cluster := embedtest.Start(t, s)
	f := &rig{T: t, ctx: ctx, client: cluster.Client(), config: cluster.Config(), metrics: &fakeMetrics{}, usage: make(fakeUsage, 1000)}
	f.dynamic = dynamic.NewForConfigOrDie(f.config)
	return f
}

// start starts the controller with settings, each FLAG=VALUE.
func start(t *testing.T, settings ...string) *rig {
	return startWith(t, func(f *rig) controllers.Scaling { return controllers.Scaling{Usage: f.usage} }, settings...)
}

// startWith starts the controller with what it works with beside the API.
func startWith(t *testing.T, beside func(*rig) controllers.Scaling, settings ...string) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	f := newRig(ctx, t, &embed.Server{Controllers: []string{"*", "-horizontal-pod-autoscaler"}})
	config := rest.CopyConfig(f.config)
	config.Wrap(f.metrics.behind)
	c := controllertest.Configured(t, podautoscaler.Controller(), settings...)
	ready, done := make(chan struct{}), make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() {
		done <- controllers.Run(running, []controllers.Controller{c}, config, controllers.Options{
			Ready: func() { close(ready) }, Scaling: beside(f),
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatalf("run: %v", err)
	}
	return f
}

// apply creates objects.
func (f *rig) apply(manifest string) {
	f.Helper()
	for _, doc := range strings.Split(manifest, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			f.Fatal(err)
		}
		gvk := u.GroupVersionKind()
		gvr := schema.GroupVersionResource{Group: gvk.Group, Version: gvk.Version, Resource: strings.ToLower(gvk.Kind) + "s"}
		namespaced := f.dynamic.Resource(gvr)
		target := namespaced.Namespace("default")
		if gvk.Kind == "CustomResourceDefinition" {
			target = namespaced
		}
		if _, err := target.Create(f.ctx, u, metav1.CreateOptions{}); err != nil {
			f.Fatalf("%s %s: %v", gvk.Kind, u.GetName(), err)
		}
	}
}

// await waits until an object is as it has to be.
func await[T runtime.Object](f *rig, resource schema.GroupVersionResource, name string, is func(T) bool) T {
	f.Helper()
	client := f.dynamic.Resource(resource).Namespace("default")
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}
	var last T
	_, err := watchtools.UntilWithSync(f.ctx, list, &unstructured.Unstructured{}, nil, func(e watch.Event) (bool, error) {
		u, ok := e.Object.(*unstructured.Unstructured)
		if !ok || u.GetName() != name || e.Type == watch.Deleted {
			return false, nil
		}
		if now, custom := any(u).(T); custom {
			last = now
			return is(now), nil
		}
		now := newOf[T]()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, now); err != nil {
			return false, err
		}
		last = now
		return is(now), nil
	})
	if err != nil {
		f.Fatalf("await %s: %v; it is %+v", name, err, last)
	}
	return last
}

func newOf[T runtime.Object]() T {
	var o any = &autoscalingv2.HorizontalPodAutoscaler{}
	if _, ok := any((*T)(nil)).(**appsv1.Deployment); ok {
		o = &appsv1.Deployment{}
	}
	return o.(T)
}

var (
	deployments = appsv1.SchemeGroupVersion.WithResource("deployments")
	hpas        = autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers")
)

func deployment(name string, replicas int) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      containers: [{name: app, image: app, resources: {requests: {cpu: 100m}}}]`, name, replicas)
}

func external(name, target, kind string, most int, metric string) string {
	return fmt.Sprintf(`apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: %s, namespace: default}
spec:
  minReplicas: 0
  maxReplicas: %d
  scaleTargetRef: {%s, name: %s}
  metrics: [{type: External, external: {metric: {name: %s}, target: {type: AverageValue, averageValue: "10"}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}`, name, most, kind, target, metric)
}

const ofDeployment = "apiVersion: apps/v1, kind: Deployment"

func value(of string) string {
	return fmt.Sprintf(`{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1",`+
		`"items":[{"metricName":"m","timestamp":"2026-01-01T00:00:00Z","value":"%s"}]}`, of)
}

func condition(h *autoscalingv2.HorizontalPodAutoscaler, of autoscalingv2.HorizontalPodAutoscalerConditionType) string {
	for _, c := range h.Status.Conditions {
		if c.Type == of {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return ""
}

// use has each pod of web use so much processor time.
func (f *rig) use(cpu string) {
	f.Helper()
	pods, err := f.client.CoreV1().Pods("default").List(f.ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		f.Fatal(err)
	}
	var items []string
	for _, pod := range pods.Items {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"%s","namespace":"default"},"timestamp":"2026-01-01T00:00:00Z","window":"10s",`+
			`"containers":[{"name":"app","usage":{"cpu":"%s","memory":"1Mi"}}]}`, pod.Name, cpu))
	}
	f.metrics.set("pods", `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","items":[`+strings.Join(items, ",")+`]}`)
}

// TestUsageWatch evaluates an autoscaler as soon as the usage of its pods changes, long before the period has passed, and ends the watch
// with the autoscaler.
func TestUsageWatch(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=1h", "horizontal-pod-autoscaler-cpu-initialization-period=0s")
	f.apply(deployment("web", 2))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 2 })
	f.use("60m")
	f.apply(byUtilization)
	var last *controllers.UsageWatch
	next := func() {
		t.Helper()
		select {
		case last = <-f.usage:
		case <-f.ctx.Done():
			t.Fatal("no watch")
		}
	}
	next()
	if n := len(last.Pods); n != 2 || len(last.Bounds) != 1 || last.Bounds[0].Resource != corev1.ResourceCPU || last.Bounds[0].High < 1.05 {
		t.Fatalf("a watch of %d pods with the bounds %v", n, last.Bounds)
	}
	f.use("120m")
	last.Wake()
	// The added pods have no samples, and count as idle.
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas > 2 })
	next()
	if err := f.client.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(f.ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for last != nil {
		next()
	}
}

const byUtilization = `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: default}
spec:
  maxReplicas: 10
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]`

// TestUtilization scales a Deployment by the processor time that its simulated pods use, as metrics.k8s.io tells.
func TestUtilization(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=100ms", "horizontal-pod-autoscaler-cpu-initialization-period=0s")
	f.apply(deployment("web", 2))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 2 })
	f.use("90m")
	f.apply(byUtilization)
	// 180m of 200m are 90 %, half as much again as the target. The third pod has no sample, and counts as idle: 60 %.
	d := await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas > 2 && d.Status.ReadyReplicas > 2 })
	if *d.Spec.Replicas != 3 {
		t.Errorf("%d replicas, want 3", *d.Spec.Replicas)
	}
	h := await(f, hpas, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
		return h.Status.CurrentReplicas == 3 && strings.Contains(condition(h, autoscalingv2.AbleToScale), "ReadyForNewScale")
	})
	if h.Status.ObservedGeneration == nil || *h.Status.ObservedGeneration != h.Generation {
		t.Errorf("observed generation %v of %d", h.Status.ObservedGeneration, h.Generation)
	}
	if got := h.Status.CurrentMetrics[0].Resource.Current; *got.AverageUtilization != 90 || got.AverageValue.String() != "90m" {
		t.Errorf("current metrics %+v", got)
	}
	want := "True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu resource utilization " +
		"(percentage of request)"
	if got := condition(h, autoscalingv2.ScalingActive); got != want {
		t.Errorf("condition %q, want %q", got, want)
	}
	event(f, "web", "SuccessfulRescale", "New size: 3; reason: cpu resource utilization (percentage of request) above target")
}

// event waits for an event about an autoscaler.
func event(f *rig, name, reason, message string) {
	f.Helper()
	client := f.client.CoreV1().Events("default")
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}
	if _, err := watchtools.UntilWithSync(f.ctx, list, &corev1.Event{}, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(*corev1.Event)
		return ok && o.InvolvedObject.Name == name && o.Reason == reason && strings.Contains(o.Message, message) &&
			o.Source.Component == "horizontal-pod-autoscaler", nil
	}); err != nil {
		f.Fatalf("await event %s %s: %v", reason, message, err)
	}
}

// TestCustomResource scales a custom resource to zero and back, by a metric of something outside the cluster.
func TestCustomResource(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=100ms")
	f.apply(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workers.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: workers, singular: worker, kind: Worker}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}`)
	f.apply("apiVersion: example.com/v1\nkind: Worker\nmetadata: {name: w, namespace: default}\nspec: {replicas: 1}")
	workers := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "workers"}
	status := []byte(`{"status":{"replicas":1,"selector":"app=w"}}`)
	if _, err := f.dynamic.Resource(workers).Namespace("default").Patch(f.ctx, "w", "application/merge-patch+json", status,
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	replicas := func(n int64) func(*unstructured.Unstructured) bool {
		return func(u *unstructured.Unstructured) bool {
			got, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
			return got == n
		}
	}
	f.metrics.set("queue", value("0"))
	f.apply(external("w", "w", "apiVersion: example.com/v1, kind: Worker", 5, "Queue"))
	await(f, workers, "w", replicas(0))
	h := await(f, hpas, "w", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
		return strings.HasPrefix(condition(h, autoscalingv2.ScaledToZero), "True ScaledToZero")
	})
	if h.Status.DesiredReplicas != 0 {
		t.Errorf("status %+v", h.Status)
	}
	f.metrics.set("queue", value("25"))
	await(f, workers, "w", replicas(3))
	event(f, "w", "SuccessfulRescale", "above target")
}

// TestSpec: a change of the spec is acted upon at once.
func TestSpec(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=1h")
	f.metrics.set("queue", value("90"))
	f.apply(deployment("web", 1))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 1 })
	f.apply(external("web", "web", ofDeployment, 2, "queue"))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 2 })
	await(f, hpas, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) bool { return h.Status.DesiredReplicas == 2 })
	if _, err := f.client.AutoscalingV2().HorizontalPodAutoscalers("default").Patch(f.ctx, "web", "application/merge-patch+json",
		[]byte(`{"spec":{"maxReplicas":4}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 4 })
	h := await(f, hpas, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
		return h.Status.ObservedGeneration != nil && *h.Status.ObservedGeneration == 2
	})
	if got := condition(h, autoscalingv2.ScalingLimited); !strings.HasPrefix(got, "True TooManyReplicas") {
		t.Errorf("condition %q", got)
	}
}

// TestServersFail: a metrics server that hangs, or answers nonsense, is the trouble of the autoscalers that use it.
func TestServersFail(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=100ms", "concurrent-horizontal-pod-autoscaler-syncs=1")
	f.metrics.set("hangs", "hang")
	f.metrics.set("lies", value("NaN"))
	f.metrics.set("queue", value("20"))
	for _, name := range []string{"hangs", "lies", "queue"} {
		f.apply(deployment(name, 1))
		f.apply(external(name, name, ofDeployment, 9, name))
	}
	for _, replicas := range []int32{2, 5, 3} {
		f.metrics.set("queue", value(fmt.Sprint(replicas*10)))
		await(f, deployments, "queue", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == replicas })
	}
	h := await(f, hpas, "lies", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
		return condition(h, autoscalingv2.ScalingActive) != ""
	})
	if got := condition(h, autoscalingv2.ScalingActive); !strings.HasPrefix(got, "False FailedGetExternalMetric") {
		t.Errorf("condition %q", got)
	}
	event(f, "lies", "FailedComputeMetricsReplicas", "invalid metrics (1 invalid out of 1)")
	await(f, hpas, "hangs", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
		return strings.HasPrefix(condition(h, autoscalingv2.ScalingActive), "False FailedGetExternalMetric") &&
			strings.Contains(condition(h, autoscalingv2.ScalingActive), "context deadline exceeded")
	})
	for _, name := range []string{"hangs", "lies"} {
		d, err := f.client.AppsV1().Deployments("default").Get(f.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if *d.Spec.Replicas != 1 {
			t.Errorf("%s has %d replicas", name, *d.Spec.Replicas)
		}
	}
}

// TestServersLie: usage of other pods, and usage below zero, say nothing about an autoscaler's pods. The autoscaler says so, and keeps the
// replicas; when the truth is told, it acts.
func TestServersLie(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=100ms", "horizontal-pod-autoscaler-cpu-initialization-period=0s")
	f.apply(deployment("web", 2))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 2 })
	pods, err := f.client.CoreV1().Pods("default").List(f.ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	own := []string{pods.Items[0].Name, pods.Items[1].Name}
	usage := func(cpu string, names ...string) string {
		var items []string
		for _, name := range names {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":"%s","namespace":"default"},"timestamp":"2026-01-01T00:00:00Z","window":"10s",`+
				`"containers":[{"name":"app","usage":{"cpu":"%s","memory":"1Mi"}}]}`, name, cpu))
		}
		return `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","items":[` + strings.Join(items, ",") + `]}`
	}
	f.metrics.set("pods", usage("900m", "stranger", "another"))
	f.apply(`apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: default}
spec:
  maxReplicas: 10
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]`)
	for _, lie := range []struct{ answer, says string }{
		{usage("900m", "stranger", "another"), "no metrics returned matched known pods"},
		{usage("-900m", own...), "did not receive metrics for targeted pods"},
		{usage("NaN", own...), "decode answer"},
		{`{"kind":"PodMetricsList","items":[]}`, "no metrics returned from resource metrics API"},
		{`{"kind":`, "decode answer"},
		{``, "decode answer"},
	} {
		f.metrics.set("pods", lie.answer)
		await(f, hpas, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			got := condition(h, autoscalingv2.ScalingActive)
			return strings.HasPrefix(got, "False FailedGetResourceMetric") && strings.Contains(got, lie.says)
		})
	}
	d, err := f.client.AppsV1().Deployments("default").Get(f.ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *d.Spec.Replicas != 2 {
		t.Errorf("%d replicas", *d.Spec.Replicas)
	}
	f.metrics.set("pods", usage("120m", own...))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 4 })
}

// TestAmbiguous: two autoscalers over the same pods say so, and neither scales.
func TestAmbiguous(t *testing.T) {
	f := start(t, "horizontal-pod-autoscaler-sync-period=100ms")
	f.metrics.set("queue", value("50"))
	f.apply(deployment("web", 1))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return d.Status.ReadyReplicas == 1 })
	f.metrics.set("queue", "")
	f.apply(external("a", "web", ofDeployment, 9, "queue") + "\n---\n" + external("b", "web", ofDeployment, 9, "queue"))
	for _, name := range []string{"a", "b"} {
		await(f, hpas, name, func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return strings.HasPrefix(condition(h, autoscalingv2.ScalingActive), "False AmbiguousSelector: pods by selector app=web are "+
				"controlled by more than one HPA (e.g. [{a default} {b default}])")
		})
	}
	if err := f.client.AutoscalingV2().HorizontalPodAutoscalers("default").Delete(f.ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.metrics.set("queue", value("50"))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 5 })
}

// TestAccount: the role of the controller's account allows what the controller does, in a cluster as it comes.
func TestAccount(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s := &embed.Server{}
	s.APIServer.Controllers.Settings = map[string]string{"horizontal-pod-autoscaler-sync-period": "100ms"}
	f := newRig(ctx, t, s)
	f.apply(strings.Replace(deployment("web", 5), "labels: {app: web}", "labels: {app: web}, annotations: "+
		"{simulated.mortise.dev/cpu-usage: 90m, simulated.mortise.dev/memory-usage: 7Mi}", 1))
	h := external("web", "web", ofDeployment, 2, "queue")
	f.apply(strings.Replace(h, "metrics: [", "metrics: ["+
		"{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}, "+
		"{type: Pods, pods: {metric: {name: m}, target: {type: AverageValue, averageValue: 1}}}, ", 1))
	await(f, deployments, "web", func(d *appsv1.Deployment) bool { return *d.Spec.Replicas == 2 })
	event(f, "web", "SuccessfulRescale", "New size: 2; reason: Current number of replicas above Spec.MaxReplicas")
	const missing = "the server could not find the requested resource"
	event(f, "web", "FailedGetPodsMetric", "no custom metrics API (custom.metrics.k8s.io) registered")
	event(f, "web", "FailedGetExternalMetric", missing)
	await(f, hpas, "web", func(h *autoscalingv2.HorizontalPodAutoscaler) bool { // what the cluster measures itself is read
		return slices.ContainsFunc(h.Status.CurrentMetrics, func(m autoscalingv2.MetricStatus) bool {
			return m.Resource != nil && m.Resource.Current.AverageUtilization != nil && *m.Resource.Current.AverageUtilization == 90
		})
	})
}
