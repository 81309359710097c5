// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package endpoints publishes which pods stand behind each Service, in the deprecated Endpoints, for clients that still read
// them. What an object holds is computed in subsets.go, without I/O.
package endpoints

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice/util"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	labelManagedBy = "endpoints.kubernetes.io/managed-by"
	manager        = "endpoint-controller"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	var batch time.Duration
	return controllers.Controller{
		Name:      "endpoints-controller",
		Account:   "endpoint-controller",
		Component: "endpoint-controller",
		Inputs: []schema.GroupVersionResource{
			corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithResource("pods"), resource,
		},
		Outputs: []schema.GroupVersionResource{resource},
		Syncs:   &controllers.Syncs{Flag: "concurrent-endpoint-syncs", Default: 5},
		Settings: []controllers.Setting{{
			Flag: "endpoint-updates-batch-period", Field: "controllers.endpoints.endpointUpdatesBatchPeriod", Value: controllers.Value(&batch),
			Usage: "Time for which the endpoints controller collects pod changes before it writes Endpoints.",
		}},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, batch) },
	}
}

var resource = corev1.SchemeGroupVersion.WithResource("endpoints")

type controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	services  listers.ServiceLister
	pods      listers.PodLister
	endpoints listers.EndpointsLister
	times     *util.TriggerTimeTracker
	batch     time.Duration // how long to collect changes of pods
	queue     *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps, batch time.Duration) (controllers.Runner, error) {
	core := d.Informers.Core().V1()
	c := &controller{
		client: d.Client, recorder: d.Recorder, services: core.Services().Lister(), pods: core.Pods().Lister(),
		endpoints: core.Endpoints().Lister(),
		times:     util.NewTriggerTimeTracker(), queue: controllers.NewQueue[types.NamespacedName](d, "endpoint", d.Syncs()), batch: batch,
	}
	err := errors.Join(
		controllers.Subscribe(d, core.Services().Informer(), controllers.OnAny(func(s *corev1.Service) { c.queue.Add(controllers.Key(s)) })),
		controllers.Subscribe(d, core.Pods().Informer(), controllers.Handler[*corev1.Pod]{
			Add:    func(pod *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(nil, pod)) },
			Update: func(before, updated *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(before, updated)) },
			Delete: func(pod *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(pod, nil)) },
		}),
		// Endpoints without a service stay: a client may create them before their service.
		controllers.Subscribe(d, core.Endpoints().Informer(), controllers.OnAny(func(e *corev1.Endpoints) {
			if _, err := c.services.Services(e.Namespace).Get(e.Name); err == nil {
				c.queue.Add(controllers.Key(e))
			}
		})),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		if err := c.leftover(); err != nil {
			return err
		}
		return c.queue.Run(ctx, c.sync)
	}), err
}

// leftover enqueues, once, the Endpoints whose service was deleted while the controller did not run.
func (c *controller) leftover() error {
	all, err := c.endpoints.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list endpoints: %w", err)
	}
	for _, e := range all {
		c.queue.Add(controllers.Key(e))
	}
	return nil
}

func (c *controller) wake(change *util.PodProjectionKey) {
	if change == nil {
		return
	}
	keys, err := util.GetServicesToUpdate(c.services, change)
	if err != nil {
		return
	}
	for key := range keys {
		if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
			c.queue.AddAfter(types.NamespacedName{Namespace: namespace, Name: name}, c.batch)
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	have, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get endpoints: %w", err)
	}
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.times.DeleteService(key.Namespace, key.Name)
		return c.remove(ctx, have)
	} else if err != nil {
		return fmt.Errorf("get service: %w", err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName || service.Spec.Selector == nil {
		return nil
	}
	pods, err := c.pods.Pods(key.Namespace).List(labels.SelectorFromSet(service.Spec.Selector))
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	want := compose(service, pods, have, c.times.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods))
	if want == nil {
		return nil
	}
	reason, told := "FailedToCreateEndpoint", "Failed to create endpoint for service %v/%v: %v" // upstream's words
	if have == nil {
		_, err = c.client.CoreV1().Endpoints(key.Namespace).Create(ctx, want, metav1.CreateOptions{})
	} else {
		reason, told = "FailedToUpdateEndpoint", "Failed to update endpoint %v/%v: %v" // upstream's words
		_, err = c.client.CoreV1().Endpoints(key.Namespace).Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
		!apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		c.recorder.Eventf(want, corev1.EventTypeWarning, reason, told, key.Namespace, key.Name, err)
	}
	return err
}

// remove deletes Endpoints without a service, except those that serve as a lock.
func (c *controller) remove(ctx context.Context, have *corev1.Endpoints) error {
	if have == nil || have.Annotations["control-plane.alpha.kubernetes.io/leader"] != "" {
		return nil
	}
	err := c.client.CoreV1().Endpoints(have.Namespace).Delete(ctx, have.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(have.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// compose returns the service's Endpoints; nil if have is up to date.
func compose(service *corev1.Service, pods []*corev1.Pod, have *corev1.Endpoints, triggered time.Time) *corev1.Endpoints {
	want := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: service.Name, Namespace: service.Namespace}}
	if have != nil {
		want = have.DeepCopy()
	}
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	want.Subsets = subsets(service, pods)
	if truncate(want.Subsets) {
		want.Annotations[corev1.EndpointsOverCapacity] = "truncated"
	} else {
		delete(want.Annotations, corev1.EndpointsOverCapacity)
	}
	want.Labels = maps.Clone(service.Labels)
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	delete(want.Labels, corev1.IsHeadlessService)
	if service.Spec.ClusterIP == corev1.ClusterIPNone || service.Spec.ClusterIP == "" {
		want.Labels[corev1.IsHeadlessService] = ""
	}
	want.Labels[labelManagedBy] = manager
	if have != nil && equality.Semantic.DeepEqual(have.Subsets, want.Subsets) && maps.Equal(have.Labels, want.Labels) &&
		have.Annotations[corev1.EndpointsOverCapacity] == want.Annotations[corev1.EndpointsOverCapacity] {
		return nil
	}
	delete(want.Annotations, corev1.EndpointsLastChangeTriggerTime)
	if !triggered.IsZero() {
		want.Annotations[corev1.EndpointsLastChangeTriggerTime] = triggered.UTC().Format(time.RFC3339Nano)
	}
	return want
}
