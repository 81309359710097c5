// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package disruption counts, for each PodDisruptionBudget, how many of its pods are healthy and how many must be, and thus how many
// evictions it allows. The API server reads that number from the budget's status. For each eviction that it allows, it subtracts one and
// records the pod in the status. This controller removes that record when the pod is deleted, or after two minutes.
//
// plan.go computes the status, without I/O. If that fails, the budget allows no eviction. The controller writes the status with the
// resourceVersion that it read: an eviction in between makes the write fail, and the sync starts again.
package disruption

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	listers "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	core, apps := corev1.SchemeGroupVersion, appsv1.SchemeGroupVersion
	budgets := policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
	return controllers.Controller{
		Name:      "disruption-controller",
		Account:   "disruption-controller",
		Component: "controllermanager",
		Inputs: []schema.GroupVersionResource{
			budgets, core.WithResource("pods"), core.WithResource("replicationcontrollers"),
			apps.WithResource("replicasets"), apps.WithResource("deployments"), apps.WithResource("statefulsets"),
		},
		Outputs: []schema.GroupVersionResource{budgets, core.WithResource("pods")},
		Syncs:   &controllers.Syncs{Flag: "concurrent-disruption-syncs", Default: 1},
		New:     build,
	}
}

type controller struct {
	client      kubernetes.Interface
	dynamic     dynamic.Interface
	discovery   discovery.DiscoveryInterface
	mapper      meta.RESTMapper
	recorder    record.EventRecorder
	clock       clock.PassiveClock
	budgets     policylisters.PodDisruptionBudgetLister
	pods        listers.PodLister
	replication listers.ReplicationControllerLister
	sets        appslisters.ReplicaSetLister
	deployments appslisters.DeploymentLister
	stateful    appslisters.StatefulSetLister
	queue       *controllers.Queue[types.NamespacedName] // budgets
	targets     *controllers.Queue[types.NamespacedName] // pods with the condition DisruptionTarget
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	pods, budgets := d.Informers.Core().V1().Pods(), d.Informers.Policy().V1().PodDisruptionBudgets()
	replication, apps := d.Informers.Core().V1().ReplicationControllers(), d.Informers.Apps().V1()
	c := &controller{
		client: d.Client, dynamic: d.Dynamic, discovery: d.Discovery, mapper: d.RESTMapper, recorder: d.Recorder, clock: d.Clock,
		budgets: budgets.Lister(), pods: pods.Lister(), replication: replication.Lister(),
		sets: apps.ReplicaSets().Lister(), deployments: apps.Deployments().Lister(), stateful: apps.StatefulSets().Lister(),
		queue:   controllers.NewQueue[types.NamespacedName](d, "disruption", d.Syncs()),
		targets: controllers.NewQueue[types.NamespacedName](d, "stale_pod_disruption", 1),
	}
	// A budget follows its pods' workloads, as upstream's does: scaling a workload changes how many pods the budget expects.
	d.Await(replication.Informer())
	d.Await(apps.ReplicaSets().Informer())
	d.Await(apps.Deployments().Informer())
	d.Await(apps.StatefulSets().Informer())
	err := errors.Join(
		controllers.Subscribe(d, budgets.Informer(), controllers.OnAny(
			func(b *policyv1.PodDisruptionBudget) { c.queue.Add(controllers.Key(b)) })),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: c.podSeen, Update: func(_, updated *corev1.Pod) { c.podSeen(updated) }, Delete: c.wake,
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			defer cancel()
			ended <- c.targets.Run(ctx, c.clear)
		}()
		err := c.queue.Run(ctx, c.sync)
		cancel()
		return errors.Join(err, <-ended)
	}), err
}

func (c *controller) podSeen(pod *corev1.Pod) {
	c.wake(pod)
	if is, wait := stale(pod, c.clock.Now()); is || wait > 0 {
		c.targets.AddAfter(controllers.Key(pod), wait)
	}
}

// wake enqueues the pod's budget. If several budgets match, it records an event and takes the first.
func (c *controller) wake(pod *corev1.Pod) {
	if len(pod.Labels) == 0 {
		return // as upstream
	}
	all, err := c.budgets.PodDisruptionBudgets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	var first *policyv1.PodDisruptionBudget
	matches := 0
	for _, b := range all {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if matches++; first == nil || b.Name < first.Name {
			first = b
		}
	}
	if first == nil {
		return
	}
	if matches > 1 {
		c.recorder.Eventf(pod, corev1.EventTypeWarning, "MultiplePodDisruptionBudgets",
			"Pod %q/%q matches multiple PodDisruptionBudgets.  Chose %q arbitrarily.", pod.Namespace, pod.Name, first.Name)
	}
	c.queue.Add(controllers.Key(first))
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	b, err := c.budgets.PodDisruptionBudgets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	status, err := c.judge(ctx, b)
	unwritten := error(nil)
	if err == nil {
		err = c.write(ctx, b, status)
		unwritten = err
	}
	if err == nil || apierrors.IsConflict(err) {
		return err
	}
	// The controller cannot judge the budget: allow no disruptions.
	closed := b.DeepCopy()
	closed.Status.DisruptionsAllowed = 0
	meta.SetStatusCondition(&closed.Status.Conditions, metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: err.Error(), ObservedGeneration: closed.Status.ObservedGeneration,
	})
	if err := c.write(ctx, b, closed.Status); err != nil {
		return err
	}
	return unwritten // retry: no event may come that would bring the budget back
}

// judge computes a budget's status.
func (c *controller) judge(ctx context.Context, b *policyv1.PodDisruptionBudget) (policyv1.PodDisruptionBudgetStatus, error) {
	none := policyv1.PodDisruptionBudgetStatus{}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		c.recorder.Eventf(b, corev1.EventTypeWarning, "NoPods", "Failed to get pods: %v", err)
		return none, err
	}
	pods, err := c.pods.Pods(b.Namespace).List(selector)
	if err != nil {
		return none, fmt.Errorf("list pods: %w", err)
	}
	if len(pods) == 0 {
		c.recorder.Event(b, corev1.EventTypeNormal, "NoPods", "No matching pods found")
	}
	v, err := decide(b, pods, func(pod *corev1.Pod) (scale, error) { return c.scaleOf(ctx, pod) }, c.clock.Now())
	if err != nil {
		c.recorder.Eventf(b, corev1.EventTypeWarning, "CalculateExpectedPodCountFailed", "Failed to calculate the number of expected pods: %v",
			err)
		return none, err
	}
	if v.unmanaged {
		c.recorder.Eventf(b, corev1.EventTypeWarning, "UnmanagedPods", "Pods selected by this PodDisruptionBudget (selector: %v) were found "+
			"to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. "+
			"To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.", b.Spec.Selector)
	}
	for _, pod := range v.overdue {
		c.recorder.Eventf(pod, corev1.EventTypeWarning, "NotDeleted", "Pod was expected by PDB %s/%s to be deleted but it wasn't", b.Namespace,
			b.Name)
	}
	if v.recheck > 0 {
		c.queue.AddAfter(controllers.Key(b), v.recheck)
	}
	return v.status, nil
}

// write writes the budget's status unless it is unchanged.
func (c *controller) write(ctx context.Context, b *policyv1.PodDisruptionBudget, status policyv1.PodDisruptionBudgetStatus) error {
	if equality.Semantic.DeepEqual(b.Status, status) {
		return nil
	}
	b = b.DeepCopy()
	b.Status = status
	_, err := c.client.PolicyV1().PodDisruptionBudgets(b.Namespace).UpdateStatus(ctx, b, metav1.UpdateOptions{})
	return err
}

// scaleOf finds the workload that controls a pod: the pod's controller, or that one's controller. A Deployment counts, not its replica
// sets. For kinds that are not built in, it reads the scale subresource.
func (c *controller) scaleOf(ctx context.Context, pod *corev1.Pod) (scale, error) {
	ref := metav1.GetControllerOf(pod)
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return scale{}, err
	}
	if found := c.builtIn(pod.Namespace, schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, ref); found != nil {
		return *found, nil
	}
	mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, gv.Version)
	if err != nil {
		return scale{}, err
	}
	none := fmt.Errorf("found no controllers for pod %q", pod.Name)
	answer, err := c.dynamic.Resource(mapping.Resource).Namespace(pod.Namespace).Get(ctx, ref.Name, metav1.GetOptions{}, "scale")
	switch {
	case apierrors.IsNotFound(err):
		// Either there is no such object, or its kind has no scale. Some clients may not read it: discovery tells which it is.
		if scales, err := c.scales(mapping.Resource); err != nil {
			return scale{}, err
		} else if !scales {
			return scale{}, fmt.Errorf("%s does not implement the scale subresource", mapping.Resource.GroupResource())
		}
		return scale{}, none
	case err != nil:
		return scale{}, err
	case answer.GetUID() != ref.UID:
		return scale{}, none
	}
	n, _, err := unstructured.NestedInt64(answer.Object, "spec", "replicas")
	return scale{ref.UID, int32(n)}, err
}

// scales reports whether a resource has the scale subresource.
func (c *controller) scales(r schema.GroupVersionResource) (bool, error) {
	list, err := c.discovery.ServerResourcesForGroupVersion(r.GroupVersion().String())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool {
		return a.Name == r.Resource+"/scale" &&
			a.Kind == "Scale"
	}), nil
}

// builtIn returns the scale of a workload whose kind has a cache here; nil for other kinds and for objects that do not exist any more.
func (c *controller) builtIn(namespace string, kind schema.GroupKind, ref *metav1.OwnerReference) *scale {
	of := func(o metav1.Object, replicas *int32, err error) *scale {
		if err != nil || o.GetUID() != ref.UID || replicas == nil {
			return nil
		}
		return &scale{ref.UID, *replicas}
	}
	switch kind {
	case schema.GroupKind{Kind: "ReplicationController"}:
		if o, err := c.replication.ReplicationControllers(namespace).Get(ref.Name); err == nil {
			return of(o, o.Spec.Replicas, err)
		}
	case schema.GroupKind{Group: "apps", Kind: "StatefulSet"}:
		if o, err := c.stateful.StatefulSets(namespace).Get(ref.Name); err == nil {
			return of(o, o.Spec.Replicas, err)
		}
	case schema.GroupKind{Group: "apps", Kind: "ReplicaSet"}:
		set, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
		if err != nil || set.UID != ref.UID {
			return nil
		}
		if up := metav1.GetControllerOfNoCopy(set); up != nil && up.Kind == "Deployment" {
			if o, err := c.deployments.Deployments(namespace).Get(up.Name); err == nil && o.UID == up.UID && o.Spec.Replicas != nil {
				return &scale{up.UID, *o.Spec.Replicas}
			}
		}
		return of(set, set.Spec.Replicas, nil)
	}
	return nil
}

// clear sets a pod's condition DisruptionTarget to False when the disruption did not come.
func (c *controller) clear(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	now := c.clock.Now()
	is, wait := stale(pod, now)
	if wait > 0 {
		c.targets.AddAfter(key, wait)
	}
	if !is {
		return nil
	}
	pod = pod.DeepCopy()
	for i := range pod.Status.Conditions {
		if t := &pod.Status.Conditions[i]; t.Type == corev1.DisruptionTarget {
			*t = corev1.PodCondition{Type: t.Type, Status: corev1.ConditionFalse, ObservedGeneration: pod.Generation,
				LastTransitionTime: metav1.NewTime(now)}
		}
	}
	_, err = c.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
