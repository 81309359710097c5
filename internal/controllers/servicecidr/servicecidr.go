// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package servicecidr manages the ranges of cluster IPs. It marks a range as ready, so that services get addresses from it, and keeps a
// deleted range while an address is in use that no other range contains.
//
// plan.go decides, from the ranges and addresses alone. An event of an address enqueues the ranges that contain it; an event of a range
// enqueues those that overlap it. Upstream waits ten seconds before it removes the finalizer of a range, so that other servers learn of the
// deletion; here the store determines the allocated addresses, so that no wait is needed.
package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// manager is the field manager of the conditions.
const manager = "service-cidr-controller"

// Controller describes the loop.
func Controller() controllers.Controller {
	ranges := networkingv1.SchemeGroupVersion.WithResource("servicecidrs")
	return controllers.Controller{
		Name:    "service-cidr-controller",
		Account: "service-cidrs-controller",
		Inputs:  []schema.GroupVersionResource{ranges, networkingv1.SchemeGroupVersion.WithResource("ipaddresses")},
		Outputs: []schema.GroupVersionResource{ranges},
		New:     build,
	}
}

type controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	ranges    listers.ServiceCIDRLister
	addresses listers.IPAddressLister
	queue     *controllers.Queue[string]
	clock     clock.PassiveClock
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	ranges, addresses := d.Informers.Networking().V1().ServiceCIDRs(), d.Informers.Networking().V1().IPAddresses()
	c := &controller{
		client: d.Client, recorder: d.Recorder, ranges: ranges.Lister(), addresses: addresses.Lister(), clock: d.Clock,
		queue: controllers.NewQueue[string](d, "ipaddresses", 1),
	}
	err := errors.Join(
		controllers.Subscribe(d, ranges.Informer(), controllers.OnAny(func(r *networkingv1.ServiceCIDR) {
			c.queue.Add(r.Name)
			c.wake(func(o *networkingv1.ServiceCIDR) bool { return o.DeletionTimestamp != nil && overlap(r, o) })
		})),
		controllers.Subscribe(d, addresses.Informer(), controllers.OnAny(func(a *networkingv1.IPAddress) {
			if ip, ok := given(a); ok {
				c.wake(func(o *networkingv1.ServiceCIDR) bool { return o.DeletionTimestamp != nil && touches(o, ip) })
			}
		})),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// wake enqueues the ranges that an event may affect.
func (c *controller) wake(matters func(*networkingv1.ServiceCIDR) bool) {
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	for _, r := range all {
		if matters(r) {
			c.queue.Add(r.Name)
		}
	}
}

// given returns the address of an IPAddress object, if it belongs to a service.
func given(a *networkingv1.IPAddress) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(a.Name)
	return ip, err == nil && a.Labels[networkingv1.LabelManagedBy] == allocator
}

func (c *controller) sync(ctx context.Context, name string) error {
	r, err := c.ranges.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get range: %w", err)
	}
	all, err := c.ranges.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list ranges: %w", err)
	}
	var used []netip.Addr
	if r.DeletionTimestamp != nil {
		objs, err := c.addresses.List(labels.Everything())
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range objs {
			if ip, ok := given(a); ok {
				used = append(used, ip)
			}
		}
	}
	next := decide(r, all, used)
	if next == release {
		return c.release(ctx, r)
	}
	if next == ready {
		if err := c.hold(ctx, r); err != nil {
			return err
		}
	}
	want := next.condition(metav1.NewTime(c.clock.Now()))
	if same(meta.FindStatusCondition(r.Status.Conditions, want.Type), &want) {
		return nil
	}
	err = controllers.Apply(ctx, c.client.NetworkingV1().ServiceCIDRs().Patch, manager, controllers.Applied{
		Kind: networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), Name: name,
		Fields: map[string]any{"status": networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{want}}},
	}, "status")
	if err = gone(err); err != nil && next == ready {
		// upstream's words
		c.recorder.Event(r, corev1.EventTypeWarning, "KubernetesServiceCIDRError", "The ServiceCIDR Status can not be set to Ready=True")
	}
	return err
}

// hold adds the finalizer to a range.
func (c *controller) hold(ctx context.Context, r *networkingv1.ServiceCIDR) error {
	if slices.Contains(r.Finalizers, finalizer) {
		return nil
	}
	return c.patch(ctx, r, "finalizers")
}

// release removes the finalizer from a range.
func (c *controller) release(ctx context.Context, r *networkingv1.ServiceCIDR) error {
	if !slices.Contains(r.Finalizers, finalizer) {
		return nil
	}
	return c.patch(ctx, r, "$deleteFromPrimitiveList/finalizers")
}

// patch sets the finalizer under the given key; other finalizers stay.
func (c *controller) patch(ctx context.Context, r *networkingv1.ServiceCIDR, key string) error {
	patch := fmt.Appendf(nil, `{"metadata":{%q:[%q],"uid":%q}}`, key, finalizer, r.UID)
	_, err := c.client.NetworkingV1().ServiceCIDRs().Patch(ctx, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return gone(err)
}

// gone ignores the error of a write to a deleted object.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
