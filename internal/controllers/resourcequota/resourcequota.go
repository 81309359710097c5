// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcequota counts the usage of each ResourceQuota, and writes it with the limits in force into the quota's status.
//
// The API server's admission plug-in of the same name charges a quota for each write that it allows; this controller gives back the usage
// of objects that are deleted, finish, or shrink. It counts when a quota is created or its limits change, when an object that a quota of
// its namespace counts is deleted, and some time after a charge, in case the charged object never came to be. It watches the resources that
// any quota names, and no others: without quotas it has nothing to do.
//
// A count must not miss an object that was charged and is not committed yet, or the server would admit more than the limit. So
// the controller counts in four steps:
//
//  1. It takes the quota from its cache.
//  2. It writes the quota's status as a dry run. The server answers when all earlier charged writes have ended. If the quota has
//     changed meanwhile, it takes the newest and repeats this step.
//  3. It lists the objects at the server, not in a cache, which may be behind.
//  4. It writes the status, on condition that the quota is unchanged: that no write was charged since. It does so even if the usage
//     is unchanged. If one object was deleted and another created during the count, the number is the one charged before, and only
//     the condition reveals the new charge. Such a write changes nothing at the server.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	maths "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/quota"
)

// attempts bounds how often one sync counts a quota anew because of new charges, before it lets other keys proceed.
const attempts = 8

// Controller describes the loop.
func Controller() controllers.Controller {
	period := 5 * time.Minute
	return controllers.Controller{
		Name:    "resourcequota-controller",
		Account: "resourcequota-controller",
		Inputs:  []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("resourcequotas")},
		Outputs: []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("resourcequotas")},
		Syncs:   &controllers.Syncs{Flag: "concurrent-resource-quota-syncs", Default: 5},
		Settings: []controllers.Setting{{
			Flag: "resource-quota-sync-period", Field: "controllers.resourceQuota.resourceQuotaSyncPeriod", Value: controllers.Value(&period),
			Usage: "Time after a change of usage after which the controller recalculates a quota.",
		}},
		Check: func(*controllers.Cluster) error {
			return controllers.AboveZero(map[string]time.Duration{"resource-quota-sync-period": period})
		},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, period) },
	}
}

type controller struct {
	client   kubernetes.Interface
	clock    clock.PassiveClock
	quotas   listers.ResourceQuotaLister
	counter  *counter
	follower *follower
	queue    *controllers.Queue[types.NamespacedName] // quotas
	groups   *controllers.Queue[string]               // API groups whose resources may have changed
}

func build(d *controllers.Deps, period time.Duration) (controllers.Runner, error) {
	informer := d.Informers.Core().V1().ResourceQuotas()
	c := &controller{
		client: d.Client, clock: d.Clock, quotas: informer.Lister(),
		queue:  controllers.NewQueue[types.NamespacedName](d, "resourcequota_primary", d.Syncs()),
		groups: controllers.NewQueue[string](d, "resourcequota_discovery", 1),
	}
	c.counter = &counter{client: d.Client, metadata: d.Metadata, clock: d.Clock}
	c.follower = newFollower(d, c.replenish)
	changed := func(o metav1.Object) { // a definition's name is RESOURCE.GROUP, a registration's VERSION.GROUP
		if _, group, ok := strings.Cut(o.GetName(), "."); ok && group != "" {
			c.groups.Add(group)
		}
	}
	err := errors.Join(
		controllers.Subscribe(d, informer.Informer(), controllers.Handler[*corev1.ResourceQuota]{
			Add: func(q *corev1.ResourceQuota) { c.queue.Add(controllers.Key(q)) },
			Update: func(before, updated *corev1.ResourceQuota) {
				switch {
				case !maths.Equals(before.Spec.Hard, updated.Spec.Hard), !equality.Semantic.DeepEqual(updated.Spec.Hard, updated.Status.Hard):
					c.queue.Add(controllers.Key(updated))
				case !maths.Equals(before.Status.Used, updated.Status.Used):
					c.queue.AddAfter(controllers.Key(updated), period)
				}
			},
		}),
		d.SubscribeLate(d.MetadataInformers.ForResource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"}).Informer(), changed),
		d.SubscribeLate(d.MetadataInformers.ForResource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
			Resource: "apiservices"}).Informer(), changed),
	)
	return c, err
}

// Run reconciles until ctx ends.
func (c *controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	c.follower.begin(ctx, group)
	group.Go(func() error { return c.groups.Run(ctx, c.changed) })
	group.Go(func() error { return c.queue.Run(ctx, c.sync) })
	return group.Wait()
}

// replenish enqueues the quotas of a namespace that limit a resource.
func (c *controller) replenish(r schema.GroupResource, namespace string) {
	all, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	for _, q := range all {
		if names(r, q) {
			c.queue.Add(controllers.Key(q))
		}
	}
}

// names reports whether a quota limits a resource.
func names(r schema.GroupResource, q *corev1.ResourceQuota) bool {
	for _, of := range quota.Resources(maths.ResourceNames(q.Spec.Hard)) {
		if of == r {
			return true
		}
	}
	return false
}

// changed enqueues the quotas that limit resources of a group, after resources were added or removed.
func (c *controller) changed(_ context.Context, group string) error {
	// Reset before reading the quotas: later quotas are counted by the new mapping.
	c.follower.d.RESTMapper.Reset()
	all, err := c.quotas.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list quotas: %w", err)
	}
	forgotten := false
	for _, q := range all {
		for _, r := range quota.Resources(maths.ResourceNames(q.Spec.Hard)) {
			if r.Group != group {
				continue
			}
			if !forgotten {
				c.follower.forget(group)
				forgotten = true
			}
			c.queue.Add(controllers.Key(q))
		}
	}
	return nil
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get quota: %w", err)
	}
	served := map[schema.GroupResource]schema.GroupVersionResource{}
	for _, r := range quota.Resources(maths.ResourceNames(q.Spec.Hard)) {
		gvr, ok, err := c.follower.follow(ctx, r)
		if err != nil {
			return fmt.Errorf("follow %s: %w", r, err)
		}
		if ok {
			served[r] = gvr
		}
	}
	for attempt := 1; ; attempt++ {
		err := c.count(ctx, q, served)
		if !apierrors.IsConflict(err) || attempt == attempts {
			return err
		}
		if q, err = c.newest(ctx, key); err != nil || q == nil {
			return err
		}
	}
}

// newest reads a quota from the server; nil: it does not exist.
func (c *controller) newest(ctx context.Context, key types.NamespacedName) (*corev1.ResourceQuota, error) {
	list, err := c.client.CoreV1().ResourceQuotas(key.Namespace).List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name).String()})
	if err != nil {
		return nil, fmt.Errorf("list quotas: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].Name == key.Name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// count counts once and writes the result. It returns a conflict if the quota was changed or charged meanwhile.
func (c *controller) count(ctx context.Context, q *corev1.ResourceQuota,
	served map[schema.GroupResource]schema.GroupVersionResource) error {
	api := c.client.CoreV1().ResourceQuotas(q.Namespace)
	// The encoder writes the kind into the object, which the informer owns.
	if _, err := api.UpdateStatus(ctx, q.DeepCopy(), metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return gone(err)
	}
	hard := maps.Clone(q.Spec.Hard)
	if hard == nil {
		hard = corev1.ResourceList{}
	}
	counted, again, failed := c.counter.count(ctx, q, served)
	if again > 0 {
		c.queue.AddAfter(controllers.Key(q), again)
	}
	used := maps.Clone(q.Status.Used)
	if used == nil {
		used = corev1.ResourceList{}
	}
	maps.Copy(used, counted)
	used = maths.Mask(used, maths.ResourceNames(hard))
	updated := q.DeepCopy()
	updated.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: used}
	if _, err := api.UpdateStatus(ctx, updated, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsConflict(err) {
			return err
		}
		return errors.Join(failed, gone(err))
	}
	return failed
}

// gone ignores the error for a quota that was deleted meanwhile.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
