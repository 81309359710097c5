// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/scale"
	"k8s.io/kubernetes/pkg/controller/podautoscaler"
	upstream "k8s.io/kubernetes/pkg/controller/podautoscaler/metrics"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	resourceclient "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
	customclient "k8s.io/metrics/pkg/client/custom_metrics"
	externalclient "k8s.io/metrics/pkg/client/external_metrics"

	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

const period = 15 * time.Second

var settings = calculator.Settings{
	Tolerance: 0.1, DownscaleStabilization: 2 * time.Minute, CPUInitializationPeriod: 5 * time.Minute, InitialReadinessDelay: 30 * time.Second,
}

// record is one sync of the reference: which autoscaler, when, and what it wrote.
type record struct {
	number int
	at     time.Time
	wrote  *int32 // the scale

	refused bool // the scale was not written, and will be read again
}

// reference is kube-controller-manager's controller on a world.
type reference struct {
	mu      sync.Mutex
	targets []*target
	syncs   []record
	events  map[string][]calculator.Event // by autoscaler
}

// run runs the controller until ctx ends.
func (r *reference) run(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (wait func()) {
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "apps", Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	c := podautoscaler.NewHorizontalController(ctx, eventsOf{r}, scales{r}, client.AutoscalingV2(), mappings{mapper, r},
		upstream.NewRESTMetricsClient(podMetrics{r: r}, customMetrics{r}, externalMetrics{r}),
		factory.Autoscaling().V2().HorizontalPodAutoscalers(), factory.Core().V1().Pods(),
		period, settings.DownscaleStabilization, settings.Tolerance, settings.CPUInitializationPeriod, settings.InitialReadinessDelay)
	var running sync.WaitGroup
	factory.StartWithContext(ctx)
	running.Go(func() { c.Run(ctx, 1) })
	return func() {
		running.Wait()
		factory.Shutdown()
	}
}

func (r *reference) synced(number int) {
	r.syncs = append(r.syncs, record{number: number, at: time.Now()})
}

// take is what happened since the last time.
func (r *reference) take() ([]record, map[string][]calculator.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	syncs, events := r.syncs, r.events
	r.syncs, r.events = nil, map[string][]calculator.Event{}
	return syncs, events
}

var errUnknown = errors.New("no matches for that kind")

// mappings know one kind, and note who asks for another.
type mappings struct {
	meta.RESTMapper
	r *reference
}

func (m mappings) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	if number, unknown := strings.CutPrefix(kind.Kind, "Unknown"); unknown {
		n, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		m.r.mu.Lock()
		defer m.r.mu.Unlock()
		m.r.synced(n)
		return nil, errUnknown
	}
	return m.RESTMapper.RESTMappings(kind, versions...)
}

// scales reads and writes the scales of targets.
type scales struct{ r *reference }

func (s scales) Scales(string) scale.ScaleInterface { return scaler{r: s.r} }

type scaler struct {
	scale.ScaleInterface
	r *reference
}

func (s scaler) Get(_ context.Context, _ schema.GroupResource, name string, _ metav1.GetOptions) (*autoscalingv1.Scale, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	for _, t := range s.r.targets {
		if t.name() != name {
			continue
		}
		if n := len(s.r.syncs); n > 0 && s.r.syncs[n-1].refused {
			s.r.syncs[n-1].refused = false
		} else {
			s.r.synced(t.number)
		}
		if t.unread != nil {
			return nil, t.unread
		}
		return &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       autoscalingv1.ScaleSpec{Replicas: t.replicas},
			Status:     autoscalingv1.ScaleStatus{Replicas: t.status, Selector: t.selector},
		}, nil
	}
	return nil, fmt.Errorf("get scale: no target %s", name)
}

func (s scaler) Update(_ context.Context, _ schema.GroupResource, scale *autoscalingv1.Scale,
	_ metav1.UpdateOptions) (*autoscalingv1.Scale, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	last := &s.r.syncs[len(s.r.syncs)-1]
	if t := s.r.targets[last.number]; t.unset != nil {
		last.refused = true
		return nil, t.unset
	}
	last.wrote = &scale.Spec.Replicas
	return scale, nil
}

// podMetrics is a client of metrics.k8s.io.
type podMetrics struct {
	resourceclient.PodMetricsInterface
	r *reference
}

func (p podMetrics) PodMetricses(string) resourceclient.PodMetricsInterface { return p }

func (p podMetrics) List(context.Context, metav1.ListOptions) (*metrics.PodMetricsList, error) {
	a := p.r.asked(func(a answer) bool { return a.pods != nil })
	return a.pods, a.err
}

// asked is the answer for the autoscaler that is evaluated.
func (r *reference) asked(of func(answer) bool) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.targets[r.syncs[len(r.syncs)-1].number].answers {
		if of(a) {
			return a
		}
	}
	return answer{err: fmt.Errorf("ask for metrics: there is no such metric")}
}

// named is the answer about the metric of that name, metric-N.
func (r *reference) named(metric string) answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := strconv.Atoi(strings.TrimPrefix(metric, "metric-"))
	if err != nil {
		return answer{err: err}
	}
	return r.targets[r.syncs[len(r.syncs)-1].number].answers[n]
}

// customMetrics is a client of custom.metrics.k8s.io.
type customMetrics struct{ r *reference }

func (c customMetrics) RootScopedMetrics() customclient.MetricsInterface { return c }

func (c customMetrics) NamespacedMetrics(string) customclient.MetricsInterface { return c }

func (c customMetrics) GetForObject(_ schema.GroupKind, _ string, metric string, _ labels.Selector) (*custommetrics.MetricValue, error) {
	a := c.r.named(metric)
	return a.object, a.err
}

func (c customMetrics) GetForObjects(_ schema.GroupKind, _ labels.Selector, metric string,
	_ labels.Selector) (*custommetrics.MetricValueList, error) {
	a := c.r.named(metric)
	return a.custom, a.err
}

// externalMetrics is a client of external.metrics.k8s.io.
type externalMetrics struct{ r *reference }

func (e externalMetrics) NamespacedMetrics(string) externalclient.MetricsInterface { return e }

func (e externalMetrics) List(metric string, _ labels.Selector) (*externalmetrics.ExternalMetricValueList, error) {
	a := e.r.named(metric)
	return a.external, a.err
}

// eventsOf takes events.
type eventsOf struct{ r *reference }

func (e eventsOf) Events(string) typedcorev1.EventInterface { return sink{r: e.r} }

type sink struct {
	typedcorev1.EventInterface
	r *reference
}

func (s sink) note(e *corev1.Event) (*corev1.Event, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	name := e.InvolvedObject.Name
	s.r.events[name] = append(s.r.events[name], calculator.Event{Type: e.Type, Reason: e.Reason, Message: e.Message})
	return e, nil
}

func (s sink) CreateWithEventNamespaceWithContext(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	return s.note(e)
}

func (s sink) CreateWithEventNamespace(e *corev1.Event) (*corev1.Event, error) { return s.note(e) }

func (s sink) PatchWithEventNamespaceWithContext(_ context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return s.note(e)
}

func (s sink) PatchWithEventNamespace(e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return s.note(e)
}

// responses are the answers about the metrics of an autoscaler, as the calculator takes them.
func responses(h *autoscalingv2.HorizontalPodAutoscaler, t *target) []calculator.Response {
	all := make([]calculator.Response, len(h.Spec.Metrics))
	for i, m := range h.Spec.Metrics {
		switch a := t.answers[i]; m.Type {
		case autoscalingv2.ResourceMetricSourceType:
			all[i] = calculator.ReadResource(a.pods, a.err, m.Resource.Name, "")
		case autoscalingv2.ContainerResourceMetricSourceType:
			all[i] = calculator.ReadResource(a.pods, a.err, m.ContainerResource.Name, m.ContainerResource.Container)
		case autoscalingv2.PodsMetricSourceType:
			all[i] = calculator.ReadPods(a.custom, a.err)
		case autoscalingv2.ObjectMetricSourceType:
			all[i] = calculator.ReadObject(a.object, a.err)
		case autoscalingv2.ExternalMetricSourceType:
			all[i] = calculator.ReadExternal(a.external, a.err)
		}
	}
	return all
}
