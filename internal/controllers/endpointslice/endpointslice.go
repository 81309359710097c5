// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package endpointslice publishes the pods behind each Service in EndpointSlices.
//
// The reconciler of k8s.io/endpointslice does the arithmetic: which endpoints go into which slice, with how few writes. This package
// drives it: a change of a pod enqueues the services that select it, a change of a slice by another client enqueues its service, and a
// change of a node's zone or readiness enqueues the services whose topology hints depend on it.
package endpointslice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kept "k8s.io/component-base/metrics"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/metrics"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const manager = "endpointslice-controller.k8s.io"

// Controller describes the loop.
func Controller() controllers.Controller {
	o := &options{perSlice: 100}
	return controllers.Controller{
		Name:      "endpointslice-controller",
		Account:   "endpointslice-controller",
		Component: "endpoint-slice-controller",
		Inputs: []schema.GroupVersionResource{
			corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithResource("pods"),
			corev1.SchemeGroupVersion.WithResource("nodes"), discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		},
		Outputs: []schema.GroupVersionResource{discoveryv1.SchemeGroupVersion.WithResource("endpointslices")},
		Syncs:   &controllers.Syncs{Flag: "concurrent-service-endpoint-syncs", Default: 5, Max: 50},
		Settings: []controllers.Setting{
			{
				Flag: "max-endpoints-per-slice", Field: "controllers.endpoints.maxEndpointsPerSlice", Value: controllers.Value(&o.perSlice),
				Usage: "Maximum number of endpoints in an EndpointSlice, from 1 to 1000.",
			},
			{
				Flag: "endpointslice-updates-batch-period", Field: "controllers.endpoints.endpointSliceUpdatesBatchPeriod",
				Value: controllers.Value(&o.batch),
				Usage: "Time for which the EndpointSlice controller collects pod changes before it writes EndpointSlices.",
			},
		},
		Check: func(*controllers.Cluster) error {
			return controllers.Within("max-endpoints-per-slice", o.perSlice, 1, 1000)
		},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, o) },
	}
}

type options struct {
	perSlice int
	batch    time.Duration
}

type controller struct {
	log        logr.Logger
	recorder   record.EventRecorder
	services   corelisters.ServiceLister
	pods       corelisters.PodLister
	nodes      corelisters.NodeLister
	slices     discoverylisters.EndpointSliceLister
	tracker    *util.EndpointSliceTracker
	times      *util.TriggerTimeTracker
	topology   *topologycache.TopologyCache
	reconciler *endpointslice.Reconciler
	batch      time.Duration // how long to collect changes of pods
	queue      *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps, o *options) (controllers.Runner, error) {
	core := d.Informers.Core().V1()
	published := d.Informers.Discovery().V1().EndpointSlices()
	c := &controller{
		log: logr.FromSlogHandler(d.Logger.Handler()).V(4), recorder: d.Recorder,
		services: core.Services().Lister(), pods: core.Pods().Lister(), nodes: core.Nodes().Lister(), slices: published.Lister(),
		tracker: util.NewEndpointSliceTracker(), times: util.NewTriggerTimeTracker(), topology: topologycache.NewTopologyCache(),
		queue: controllers.NewQueue[types.NamespacedName](d, "endpoint_slice", d.Syncs()), batch: o.batch,
	}
	c.reconciler = endpointslice.NewReconciler(d.Client, c.nodes, int32(o.perSlice), c.tracker, c.topology, d.Recorder, manager,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	err := errors.Join(
		measure(d.Metrics),
		controllers.Subscribe(d, core.Services().Informer(), controllers.OnAny(func(s *corev1.Service) { c.queue.Add(controllers.Key(s)) })),
		controllers.Subscribe(d, core.Pods().Informer(), controllers.Handler[*corev1.Pod]{
			Add:    func(pod *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(nil, pod)) },
			Update: func(before, updated *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(before, updated)) },
			Delete: func(pod *corev1.Pod) { c.wake(util.GetPodUpdateProjectionKey(pod, nil)) },
		}),
		controllers.Subscribe(d, published.Informer(), controllers.Handler[*discoveryv1.EndpointSlice]{
			Add: func(s *discoveryv1.EndpointSlice) {
				if c.reconciler.ManagedByController(s) && c.tracker.ShouldSync(s) {
					c.wakeFor(s)
				}
			},
			Update: c.sliceUpdated,
			Delete: func(s *discoveryv1.EndpointSlice) {
				if c.reconciler.ManagedByController(s) && c.tracker.Has(s) && !c.tracker.HandleDeletion(s) {
					c.wakeFor(s)
				}
			},
		}),
		controllers.Subscribe(d, core.Nodes().Informer(), controllers.Handler[*corev1.Node]{
			Add: func(*corev1.Node) { c.nodesChanged() },
			Update: func(before, updated *corev1.Node) {
				if ready(before) != ready(updated) || before.Labels[corev1.LabelTopologyZone] != updated.Labels[corev1.LabelTopologyZone] {
					c.nodesChanged()
				}
			},
			Delete: func(*corev1.Node) { c.nodesChanged() },
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// wake enqueues the services that select, or selected, a pod.
func (c *controller) wake(change *util.PodProjectionKey) {
	if change == nil {
		return
	}
	keys, err := util.GetServicesToUpdate(c.services, change)
	if err != nil {
		return
	}
	for key := range keys {
		c.add(key, c.batch)
	}
}

func (c *controller) add(key string, after time.Duration) {
	if namespace, name, err := cache.SplitMetaNamespaceKey(key); err == nil {
		c.queue.AddAfter(types.NamespacedName{Namespace: namespace, Name: name}, after)
	}
}

func (c *controller) wakeFor(s *discoveryv1.EndpointSlice) {
	if service := s.Labels[discoveryv1.LabelServiceName]; service != "" {
		c.queue.AddAfter(types.NamespacedName{Namespace: s.Namespace, Name: service}, c.batch)
	}
}

func (c *controller) sliceUpdated(before, updated *discoveryv1.EndpointSlice) {
	if before.Labels[discoveryv1.LabelServiceName] != updated.Labels[discoveryv1.LabelServiceName] {
		c.wakeFor(before)
		c.wakeFor(updated)
		return
	}
	if c.reconciler.ManagedByChanged(before, updated) || c.reconciler.ManagedByController(updated) && c.tracker.ShouldSync(updated) {
		c.wakeFor(updated)
	}
}

func (c *controller) nodesChanged() {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	c.topology.SetNodes(c.log, nodes)
	for _, key := range c.topology.GetOverloadedServices() {
		c.add(key, 0)
	}
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (c *controller) sync(_ context.Context, key types.NamespacedName) error {
	service, err := c.services.Services(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		// The service owns its slices: the garbage collector deletes them.
		c.times.DeleteService(key.Namespace, key.Name)
		c.reconciler.DeleteService(key.Namespace, key.Name)
		c.tracker.DeleteService(key.Namespace, key.Name)
		return nil
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
	have, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: manager,
	}))
	if err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	have = slices.DeleteFunc(have, func(s *discoveryv1.EndpointSlice) bool { return s.DeletionTimestamp != nil })
	if c.tracker.StaleSlices(service, have) {
		metrics.EndpointSliceSyncs.WithLabelValues("stale").Inc()
		// upstream's words
		return controllers.Behind(discoveryv1.Resource("endpointslices"), key.Name, "EndpointSlice informer cache is out of date")
	}
	if err := c.reconciler.Reconcile(c.log, service, pods, have,
		c.times.ComputeEndpointLastChangeTriggerTime(key.Namespace, service, pods)); err != nil {
		metrics.EndpointSliceSyncs.WithLabelValues("error").Inc()
		c.recorder.Eventf(service, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", service.Namespace, service.Name, err)
		return err
	}
	metrics.EndpointSliceSyncs.WithLabelValues("success").Inc()
	return nil
}

// measure registers the reconciler's metrics. They belong to the library: several servers in one process share the counts.
func measure(m *controllers.Metrics) error {
	for _, own := range []kept.Registerable{
		metrics.EndpointsAddedPerSync, metrics.EndpointsRemovedPerSync, metrics.EndpointsDesired, metrics.NumEndpointSlices,
		metrics.DesiredEndpointSlices,
		metrics.EndpointSliceChanges, metrics.EndpointSlicesChangedPerSync, metrics.EndpointSliceSyncs,
		metrics.ServicesCountByTrafficDistribution,
	} {
		own.Create(nil)
		if _, err := m.Register(own); err != nil {
			return err
		}
	}
	return nil
}
