// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package endpointslicemirroring copies Endpoints that users write, for a Service without a selector, into EndpointSlices, which are
// what proxies read.
//
// mirror.go computes the slices, without I/O: one for each group of ports and each address family. Endpoints with the label
// endpointslice.kubernetes.io/skip-mirror, or that serve as a lock, have none.
package endpointslicemirroring

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice/util"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// manager is the controller's name in the slices' managed-by label.
const manager = "endpointslicemirroring-controller.k8s.io"

// Controller describes the loop.
func Controller() controllers.Controller {
	slices := discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	o := &options{limit: 1000}
	return controllers.Controller{
		Name:      "endpointslice-mirroring-controller",
		Account:   "endpointslicemirroring-controller",
		Component: "endpoint-slice-mirroring-controller",
		Inputs: []schema.GroupVersionResource{
			corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithResource("endpoints"), slices,
		},
		Outputs: []schema.GroupVersionResource{slices},
		Syncs:   &controllers.Syncs{Flag: "mirroring-concurrent-service-endpoint-syncs", Default: 5, Max: 50},
		Settings: []controllers.Setting{
			{
				Flag: "mirroring-max-endpoints-per-subset", Field: "controllers.endpoints.mirroringMaxEndpointsPerSubset",
				Value: controllers.Value(&o.limit),
				Usage: "Maximum number of addresses of an Endpoints subset that are mirrored to EndpointSlices, from 1 to 1000.",
			},
			{
				Flag:  "mirroring-endpointslice-updates-batch-period",
				Field: "controllers.endpoints.mirroringEndpointSliceUpdatesBatchPeriod", Value: controllers.Value(&o.batch),
				Usage: "Time for which the mirroring controller collects changes of EndpointSlices before it corrects them.",
			},
		},
		Check: func(*controllers.Cluster) error {
			return controllers.Within("mirroring-max-endpoints-per-subset", o.limit, 1, 1000)
		},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, o) },
	}
}

type options struct {
	limit int // addresses of one subset
	batch time.Duration
}

type controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	services  corelisters.ServiceLister
	endpoints corelisters.EndpointsLister
	slices    discoverylisters.EndpointSliceLister
	tracker   *util.EndpointSliceTracker
	limit     int           // addresses of one subset
	batch     time.Duration // how long to collect changes of slices
	meters    *meters
	queue     *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps, o *options) (controllers.Runner, error) {
	core, published := d.Informers.Core().V1(), d.Informers.Discovery().V1().EndpointSlices()
	c := &controller{
		client: d.Client, recorder: d.Recorder,
		services: core.Services().Lister(), endpoints: core.Endpoints().Lister(), slices: published.Lister(),
		tracker: util.NewEndpointSliceTracker(), limit: o.limit,
		queue: controllers.NewQueue[types.NamespacedName](d, "endpoint_slice_mirroring", d.Syncs()), batch: o.batch,
	}
	var err error
	c.meters, err = newMeters(d)
	unselective := func(s *corev1.Service) {
		if s.Spec.Selector == nil {
			c.queue.Add(controllers.Key(s))
		}
	}
	written := func(e *corev1.Endpoints) {
		if mirrored(e) {
			c.queue.Add(controllers.Key(e))
		}
	}
	err = errors.Join(err,
		controllers.Subscribe(d, core.Services().Informer(), controllers.Handler[*corev1.Service]{
			Add: unselective,
			Update: func(before, updated *corev1.Service) {
				if (before.Spec.Selector == nil) != (updated.Spec.Selector == nil) {
					c.queue.Add(controllers.Key(updated))
				}
			},
			Delete: unselective,
		}),
		controllers.Subscribe(d, core.Endpoints().Informer(), controllers.Handler[*corev1.Endpoints]{
			Add: written,
			Update: func(before, updated *corev1.Endpoints) {
				if mirrored(before) || mirrored(updated) {
					c.queue.Add(controllers.Key(updated))
				}
			},
			Delete: written,
		}),
		controllers.Subscribe(d, published.Informer(), controllers.Handler[*discoveryv1.EndpointSlice]{
			Add: func(s *discoveryv1.EndpointSlice) {
				if ours(s) && c.tracker.ShouldSync(s) {
					c.wake(s)
				}
			},
			Update: c.sliceUpdated,
			Delete: func(s *discoveryv1.EndpointSlice) {
				if ours(s) && c.tracker.Has(s) && !c.tracker.HandleDeletion(s) {
					c.wake(s)
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		return c.queue.Run(ctx, func(ctx context.Context, key types.NamespacedName) error {
			began := d.Clock.Now()
			defer func() { c.meters.took.WithLabelValues().Observe(d.Clock.Since(began).Seconds()) }()
			return c.sync(ctx, key)
		})
	}), err
}

// mirrored reports whether Endpoints should have slices.
func mirrored(e *corev1.Endpoints) bool {
	_, lock := e.Annotations[resourcelock.LeaderElectionRecordAnnotationKey]
	return !lock && e.Labels[discoveryv1.LabelSkipMirror] != "true"
}

func ours(s *discoveryv1.EndpointSlice) bool { return s.Labels[discoveryv1.LabelManagedBy] == manager }

func (c *controller) wake(s *discoveryv1.EndpointSlice) {
	if service := s.Labels[discoveryv1.LabelServiceName]; service != "" {
		c.queue.AddAfter(types.NamespacedName{Namespace: s.Namespace, Name: service}, c.batch)
	}
}

func (c *controller) sliceUpdated(before, updated *discoveryv1.EndpointSlice) {
	if before.Labels[discoveryv1.LabelServiceName] != updated.Labels[discoveryv1.LabelServiceName] {
		c.wake(before)
		c.wake(updated)
		return
	}
	if ours(before) != ours(updated) || ours(updated) && c.tracker.ShouldSync(updated) {
		c.wake(updated)
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	have, err := c.slices.EndpointSlices(key.Namespace).List(labels.SelectorFromSet(labels.Set{
		discoveryv1.LabelServiceName: key.Name, discoveryv1.LabelManagedBy: manager,
	}))
	if err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	endpoints, err := c.endpoints.Endpoints(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get endpoints: %w", err)
	}
	service, gone := c.services.Services(key.Namespace).Get(key.Name)
	if gone != nil && !apierrors.IsNotFound(gone) {
		return fmt.Errorf("get service: %w", gone)
	}
	if err != nil || gone != nil || !mirrored(endpoints) || service.Spec.Selector != nil {
		c.tracker.DeleteService(key.Namespace, key.Name)
		c.meters.book(key, amount{})
		return c.remove(ctx, have)
	}
	if c.tracker.StaleSlices(service, have) {
		// upstream's words
		return controllers.Behind(discoveryv1.Resource("endpointslices"), key.Name, "EndpointSlice informer cache is out of date")
	}
	p := mirror(endpoints, have, c.limit)
	c.meters.tell(key, p)
	if p.invalid > 0 {
		c.recorder.Eventf(endpoints, corev1.EventTypeWarning, "InvalidIPAddress",
			"Skipped %d invalid IP addresses when mirroring to EndpointSlices", p.invalid)
	}
	if p.skipped > p.invalid {
		c.recorder.Eventf(endpoints, corev1.EventTypeWarning, "TooManyAddressesToMirror",
			"A max of %d addresses can be mirrored to EndpointSlices per Endpoints subset. %d addresses were skipped", c.limit, p.skipped)
	}
	return c.carryOut(ctx, endpoints, p)
}

// carryOut executes a plan. Endpoints that are being deleted get no new slices.
func (c *controller) carryOut(ctx context.Context, endpoints *corev1.Endpoints, p plan) error {
	api := c.client.DiscoveryV1().EndpointSlices(endpoints.Namespace)
	for _, s := range p.keep {
		if !c.tracker.Has(s) {
			c.tracker.Update(s)
		}
	}
	if endpoints.DeletionTimestamp == nil {
		for _, s := range p.create {
			made, err := api.Create(ctx, s, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create endpoint slice: %w", err)
			}
			c.tracker.Update(made)
			c.meters.changes.WithLabelValues("create").Inc()
		}
	}
	for _, s := range p.update {
		changed, err := api.Update(ctx, s, metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("update endpoint slice: %w", err)
		}
		c.tracker.Update(changed)
		c.meters.changes.WithLabelValues("update").Inc()
	}
	for _, s := range p.remove {
		if err := api.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete endpoint slice: %w", err)
		}
		c.tracker.ExpectDeletion(s)
		c.meters.changes.WithLabelValues("delete").Inc()
	}
	return nil
}

func (c *controller) remove(ctx context.Context, have []*discoveryv1.EndpointSlice) error {
	var errs []error
	for _, s := range have {
		if err := c.client.DiscoveryV1().EndpointSlices(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete endpoint slice: %w", err))
		}
	}
	return errors.Join(errs...)
}
