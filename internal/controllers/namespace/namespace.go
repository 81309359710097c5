// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package namespace empties namespaces that are being deleted, and finalizes them when nothing is left.
//
// The controller asks discovery each time which resources to delete, so it empties custom resources and aggregated APIs like any other. It
// deletes pods first and completely, since the objects that they use must outlive them. Then it deletes everything else, and the
// namespace's conditions say what remains, which finalizers hold it, and what could not be discovered or deleted. When nothing remains, it
// removes the finalizer "kubernetes" through the finalize subresource.
//
// The controller empties all API groups concurrently, each by itself: another server may serve a group, and one that hangs delays only the
// namespace's end. A round waits half a minute for it; in the next one, discovery knows that it does not answer.
//
// The sync runs again when a pod is gone; for other kinds, which are not all watched, after a pause.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	namespaces := corev1.SchemeGroupVersion.WithResource("namespaces")
	return controllers.Controller{
		Name:    "namespace-controller",
		Account: "namespace-controller",
		Inputs:  []schema.GroupVersionResource{namespaces, podsResource},
		Outputs: []schema.GroupVersionResource{namespaces},
		Syncs:   &controllers.Syncs{Flag: "concurrent-namespace-syncs", Default: 10},
		New:     build,
	}
}

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

type controller struct {
	client     kubernetes.Interface
	metadata   metadata.Interface
	discovery  discovery.DiscoveryInterface
	clock      clock.PassiveClock
	namespaces listers.NamespaceLister
	pods       listers.PodLister
	queue      *controllers.Queue[string]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	namespaces, pods := d.Informers.Core().V1().Namespaces(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, metadata: d.Metadata, discovery: d.Discovery, clock: d.Clock,
		namespaces: namespaces.Lister(), pods: pods.Lister(), queue: controllers.NewQueue[string](d, "namespace", d.Syncs()),
	}
	going := func(ns *corev1.Namespace) {
		if ns.DeletionTimestamp != nil {
			c.queue.Add(ns.Name)
		}
	}
	err := errors.Join(
		controllers.Subscribe(d, namespaces.Informer(), controllers.Handler[*corev1.Namespace]{
			Add:    going,
			Update: func(_, ns *corev1.Namespace) { going(ns) },
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{Delete: func(pod *corev1.Pod) {
			if ns, err := c.namespaces.Get(pod.Namespace); err == nil {
				going(ns)
			}
		}}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) sync(ctx context.Context, name string) error {
	api := c.client.CoreV1().Namespaces()
	ns, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && ns.DeletionTimestamp == nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("get namespace: %w", err)
	}
	if ns.Status.Phase != corev1.NamespaceTerminating {
		ns.Status.Phase = corev1.NamespaceTerminating
		if ns, err = api.UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update status: %w", err)
		}
	}
	if len(ns.Spec.Finalizers) == 0 {
		return nil
	}
	left := c.empty(ctx, name, ns.DeletionTimestamp.Time)
	if conditions := left.conditions(ns.Status.Conditions, c.clock.Now()); !slices.Equal(conditions, ns.Status.Conditions) {
		ns.Status.Conditions = conditions
		if ns, err = api.UpdateStatus(ctx, ns, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update status: %w", err)
		}
	}
	if err := left.failure(); err != nil {
		return err
	}
	if left.objects() > 0 {
		c.queue.AddAfter(name, left.pause())
		return nil
	}
	ns.Spec.Finalizers = slices.DeleteFunc(ns.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if _, err := api.Finalize(ctx, ns, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalize namespace: %w", err)
	}
	return nil
}

// empty deletes the namespace's objects and returns what is left.
func (c *controller) empty(ctx context.Context, namespace string, since time.Time) *remains {
	left := newRemains()
	found, err := discovery.ServerPreferredNamespacedResources(c.discovery)
	if err != nil {
		left.discovery = err
	}
	deletable, err := discovery.GroupVersionResources(discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete"}}, found))
	if err != nil {
		left.parsing = err
	}
	if _, ok := deletable[podsResource]; ok {
		grace := c.longestGrace(namespace)
		c.emptyOf(ctx, podsResource, namespace, left)
		left.overdue(namespace, podsResource, c.clock.Since(since) < grace)
		if left.objects() > 0 {
			left.onlyPods = true
			return left
		}
	}
	groups := map[string][]schema.GroupVersionResource{}
	for gvr := range deletable {
		if gvr != podsResource {
			groups[gvr.Group] = append(groups[gvr.Group], gvr)
		}
	}
	c.emptyGroups(ctx, groups, namespace, left)
	return left
}

// groupTime is the time that a group has in one round. The next round continues where this one ended.
const groupTime = 30 * time.Second

// emptyGroups deletes all objects of groups, each group by itself.
func (c *controller) emptyGroups(ctx context.Context, groups map[string][]schema.GroupVersionResource, namespace string, left *remains) {
	parts := make(chan *remains)
	for group, all := range groups {
		go func() {
			ctx, cancel := context.WithTimeoutCause(ctx, groupTime, fmt.Errorf("group %q is not emptied within %v", group, groupTime))
			defer cancel()
			part := newRemains()
			for _, gvr := range all {
				c.emptyOf(ctx, gvr, namespace, part)
				part.overdue(namespace, gvr, false)
				if err := context.Cause(ctx); err != nil {
					part.errs = append(part.errs, err)
					break
				}
			}
			parts <- part
		}()
	}
	for range groups {
		left.add(<-parts)
	}
}

// emptyOf deletes all objects of one resource.
func (c *controller) emptyOf(ctx context.Context, gvr schema.GroupVersionResource, namespace string, left *remains) {
	api := c.metadata.Resource(gvr).Namespace(namespace)
	items, listed, err := c.list(ctx, api)
	if err == nil && (len(items) > 0 || !listed) {
		background := metav1.DeletePropagationBackground
		options := metav1.DeleteOptions{PropagationPolicy: &background}
		err = api.DeleteCollection(ctx, options, metav1.ListOptions{})
		if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
			err = nil
			for _, item := range items {
				if e := api.Delete(ctx, item.Name, options); e != nil && !apierrors.IsNotFound(e) && !apierrors.IsMethodNotSupported(e) {
					err = errors.Join(err, e)
				}
			}
		}
		if err == nil {
			items, _, err = c.list(ctx, api)
		}
	}
	if err != nil {
		left.errs = append(left.errs, err)
		return
	}
	left.count(gvr, items, c.clock.Now())
}

// longestGrace returns the longest grace period of the namespace's unfinished pods.
func (c *controller) longestGrace(namespace string) (grace time.Duration) {
	pods, err := c.pods.Pods(namespace).List(labels.Everything())
	if err != nil {
		return 0 // a lister returns no error
	}
	for _, pod := range pods {
		if s := pod.Spec.TerminationGracePeriodSeconds; s != nil && pod.Status.Phase != corev1.PodSucceeded &&
			pod.Status.Phase != corev1.PodFailed {
			grace = max(grace, time.Duration(*s)*time.Second)
		}
	}
	return grace
}

// list returns the metadata of all objects. It returns none, and false, when the resource is not served any more or cannot be listed.
func (c *controller) list(ctx context.Context, api metadata.ResourceInterface) (items []metav1.PartialObjectMetadata, listed bool,
	err error) {
	list, err := api.List(ctx, metav1.ListOptions{})
	if apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	return list.Items, true, nil
}

// longest is the pause after which the controller syncs a namespace with remains again, whatever it waits for.
const longest = 15 * time.Second
