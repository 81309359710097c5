// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	custommetrics "k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	externalmetrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	metrics "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// patience is how long a metrics server may take to answer. It bounds what an autoscaler waits for: others do not wait for the same.
const patience = 10 * time.Second

const (
	customGroup   = "custom.metrics.k8s.io"
	externalGroup = "external.metrics.k8s.io"
	resourceGroup = "metrics.k8s.io"
)

// sources asks the metrics APIs.
type sources struct {
	client rest.Interface
	mapper meta.RESTMapper
	clock  clock.PassiveClock
	period time.Duration        // for which the version of custom metrics holds
	direct controllers.PodUsage // nil: metrics.k8s.io is not built in

	mu      sync.Mutex
	version string    // of custom metrics; empty: not known
	until   time.Time // the version holds
}

// get asks for path, whose answer it decodes.
func (s *sources) get(ctx context.Context, request *rest.Request, into any) error {
	answer := request.SetHeader("Accept", "application/json").Do(ctx)
	if err := answer.Error(); err != nil {
		return err
	}
	body, err := answer.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}

// selected adds a selector to a request.
func selected(r *rest.Request, parameter string, by labels.Selector) *rest.Request {
	if text := by.String(); text != "" {
		return r.Param(parameter, text)
	}
	return r
}

// usage is the question for the usage of pods, which metrics of an autoscaler share.
func (s *sources) usage(namespace string) *rest.Request {
	return s.client.Get().AbsPath("/apis/" + resourceGroup + "/v1beta1").Namespace(namespace).Resource("pods")
}

// usagePath is the path of that question.
func usagePath(namespace string) string {
	return "/apis/" + resourceGroup + "/v1beta1/namespaces/" + namespace + "/pods"
}

// reading is the answer about one metric of an autoscaler.
type reading struct {
	*sources
	path     string // that was asked for
	took     time.Duration
	response calculator.Response
}

// ask asks for a metric, and notes the path.
func (r *reading) ask(ctx context.Context, request *rest.Request, into any) error {
	r.path = request.URL().Path
	return r.get(ctx, request, into)
}

// custom asks for a metric of objects of a resource, and of the one of that name, or of all by "*".
func (r *reading) custom(ctx context.Context, request customRequest) (*custommetrics.MetricValueList, error) {
	version, err := r.preferred(ctx)
	if err != nil {
		return nil, err
	}
	get := r.client.Get().AbsPath("/apis/" + customGroup + "/" + version).Namespace(request.namespace)
	if request.kind == (schema.GroupKind{Kind: "Namespace"}) {
		get = get.Resource("metrics").Name(request.metric)
	} else {
		mapping, err := r.mapper.RESTMapping(request.kind)
		if err != nil {
			return nil, fmt.Errorf("unable to map kind %s to resource: %w", request.kind, err)
		}
		get = get.Resource(mapping.Resource.GroupResource().String()).Name(request.name).SubResource(request.metric)
	}
	if request.selector != nil {
		get = selected(get, "labelSelector", request.selector)
	}
	list := &custommetrics.MetricValueList{} // the fields of v1beta1 that count have the same names
	return list, r.ask(ctx, selected(get, "metricLabelSelector", request.values), list)
}

// customRequest names a custom metric.
type customRequest struct {
	namespace, name, metric string
	kind                    schema.GroupKind
	selector                labels.Selector // of objects
	values                  labels.Selector // of values
}

// preferred is the version in which custom metrics are served.
func (s *sources) preferred(ctx context.Context) (string, error) {
	s.mu.Lock()
	version, until := s.version, s.until
	s.mu.Unlock()
	if version != "" && s.clock.Now().Before(until) {
		return version, nil
	}
	var group metav1.APIGroup
	err := s.get(ctx, s.client.Get().AbsPath("/apis/"+customGroup), &group)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("no custom metrics API (%s) registered", customGroup)
	} else if err != nil {
		return "", err
	}
	version = ""
	for _, v := range slices.Concat([]metav1.GroupVersionForDiscovery{group.PreferredVersion}, group.Versions) {
		if v.Version == "v1beta2" || v.Version == "v1beta1" {
			version = v.Version
			break
		}
	}
	if version == "" {
		return "", errors.New("no known available metric versions found")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.until = version, s.clock.Now().Add(s.period)
	return version, nil
}

// external asks for the values of a metric of something outside the cluster. Its name is asked for in lower case, as upstream does.
func (r *reading) external(ctx context.Context, namespace, metric string,
	values labels.Selector) (*externalmetrics.ExternalMetricValueList, error) {
	list := &externalmetrics.ExternalMetricValueList{}
	request := r.client.Get().AbsPath("/apis/" + externalGroup + "/v1beta1").Namespace(namespace).Resource(metric)
	return list, r.ask(ctx, selected(request, "labelSelector", values), list)
}

// know reads all metrics of an autoscaler without a question; false: it cannot.
func (s *sources) know(ctx context.Context, e *evaluation) bool {
	if s.direct == nil || len(e.hpa.Spec.Metrics) == 0 {
		return false
	}
	for i := range e.hpa.Spec.Metrics {
		if m := &e.hpa.Spec.Metrics[i]; m.Resource == nil && m.ContainerResource == nil {
			return false
		}
	}
	begin := s.clock.Now()
	list := s.direct.Read(e.pods)
	if list == nil {
		return false
	}
	e.readings = make([]reading, len(e.hpa.Spec.Metrics))
	for i := range e.readings {
		r := &e.readings[i]
		r.sources = s
		r.response = r.read(ctx, e.hpa, i, e.selector, func() (*metrics.PodMetricsList, error) { return list, nil })
		r.took = s.clock.Since(begin)
	}
	return true
}

// read asks for all metrics of an autoscaler at once: one that is late does not hold up the others. The usage of pods is one question.
func (s *sources) read(ctx context.Context, e *evaluation) []reading {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := len(e.hpa.Spec.Metrics)
	all := make([]reading, n)
	usage := sync.OnceValues(func() (*metrics.PodMetricsList, error) {
		list := &metrics.PodMetricsList{}
		return list, s.get(ctx, selected(s.usage(e.hpa.Namespace), "labelSelector", e.selector), list)
	})
	one := func(i int) {
		begin := s.clock.Now()
		all[i].sources = s
		all[i].response = all[i].read(ctx, e.hpa, i, e.selector, usage)
		all[i].took = s.clock.Since(begin)
	}
	var asking sync.WaitGroup
	for i := range n - 1 {
		asking.Go(func() { one(i + 1) })
	}
	if n > 0 {
		one(0)
	}
	asking.Wait()
	return all
}

// read asks for one metric.
func (r *reading) read(ctx context.Context, hpa *autoscalingv2.HorizontalPodAutoscaler, i int, selector labels.Selector,
	usage func() (*metrics.PodMetricsList, error)) calculator.Response {
	spec := &hpa.Spec.Metrics[i]
	var values labels.Selector
	metric := calculator.Metric(spec)
	if metric != nil {
		var err error
		if values, err = metav1.LabelSelectorAsSelector(metric.Selector); err != nil {
			return calculator.Response{} // the calculator finds the same error
		}
	}
	switch {
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		r.path = usagePath(hpa.Namespace)
		list, err := usage()
		return calculator.ReadResource(list, err, spec.Resource.Name, "")
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		r.path = usagePath(hpa.Namespace)
		list, err := usage()
		return calculator.ReadResource(list, err, spec.ContainerResource.Name, spec.ContainerResource.Container)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		return calculator.ReadPods(r.custom(ctx, customRequest{
			namespace: hpa.Namespace, kind: schema.GroupKind{Kind: "Pod"}, name: "*", metric: metric.Name, selector: selector, values: values,
		}))
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		return calculator.ReadObject(r.object(ctx, hpa.Namespace, spec.Object, values))
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		return calculator.ReadExternal(r.external(ctx, hpa.Namespace, metric.Name, values))
	}
	return calculator.Response{}
}

// object asks for a metric of one object. A namespace is the autoscaler's own: it cannot look into others.
func (r *reading) object(ctx context.Context, namespace string, spec *autoscalingv2.ObjectMetricSource,
	values labels.Selector) (*custommetrics.MetricValue, error) {
	of := schema.FromAPIVersionAndKind(spec.DescribedObject.APIVersion, spec.DescribedObject.Kind).GroupKind()
	list, err := r.custom(ctx, customRequest{
		namespace: namespace, kind: of, name: spec.DescribedObject.Name, metric: spec.Metric.Name, values: values,
	})
	if err != nil {
		return nil, err
	}
	if n := len(list.Items); n != 1 {
		return nil, fmt.Errorf("the custom metrics API server returned %v results when we asked for exactly one", n)
	}
	return &list.Items[0], nil
}
