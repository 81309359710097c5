// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package deployment rolls Deployments out: it creates a ReplicaSet for each version of the pod template and moves the replicas from the
// old ones to the newest.
//
// One pure function makes all decisions: [decide] takes the deployment, its replica sets and the time, and returns what to create, update
// and delete, the status, the events, and when to sync again. The rest of the package fetches that input and executes the decision.
//
//	plan.go      the decision: which case applies, and what follows
//	rollout.go   rolling update and recreate: how many old and how many new replicas
//	scale.go     proportional scaling while several replica sets are up
//	revision.go  revisions, their annotations, the template's hash
//	status.go    counts and conditions, the progress deadline
//	written.go   writes that the cache does not show yet
//
// Worked example: web asks for 3 replicas with maxSurge 1, maxUnavailable 0, and its image changes. Sync 1 creates web-B with one replica
// (3+1 may exist). When B's pod is available, sync 2 scales A from 3 to 2 (3 must stay available); sync 3 scales B to 2; and so on until B
// has 3 and A none. decide uses the counts alone, so a sync that is lost or runs twice merely decides again.
package deployment

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// Controller describes the loop.
func Controller() controllers.Controller {
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
	sets := appsv1.SchemeGroupVersion.WithResource("replicasets")
	return controllers.Controller{
		Name:    "deployment-controller",
		Account: "deployment-controller",
		Inputs:  []schema.GroupVersionResource{deployments, sets, corev1.SchemeGroupVersion.WithResource("pods")},
		Outputs: []schema.GroupVersionResource{deployments, sets},
		Syncs:   &controllers.Syncs{Flag: "concurrent-deployment-syncs", Default: 5},
		New:     build,
	}
}

type controller struct {
	client      kubernetes.Interface
	recorder    record.EventRecorder
	clock       clock.PassiveClock
	deployments appslisters.DeploymentLister
	sets        appslisters.ReplicaSetLister
	setIndex    cache.Indexer
	pods        cache.Indexer
	written     *written
	queue       *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	deployments, sets, pods := d.Informers.Apps().V1().Deployments(), d.Informers.Apps().V1().ReplicaSets(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock,
		deployments: deployments.Lister(), sets: sets.Lister(), setIndex: sets.Informer().GetIndexer(), pods: pods.Informer().GetIndexer(),
		written: newWritten(),
		queue:   controllers.NewQueue[types.NamespacedName](d, "deployment", d.Syncs()),
	}
	err := errors.Join(
		workload.IndexByController(pods.Informer()),
		workload.IndexByController(sets.Informer()),
		controllers.Subscribe(d, deployments.Informer(), controllers.OnAny(func(o *appsv1.Deployment) { c.queue.Add(controllers.Key(o)) })),
		controllers.Subscribe(d, sets.Informer(), controllers.Handler[*appsv1.ReplicaSet]{
			Add: func(rs *appsv1.ReplicaSet) { c.wake(rs) },
			Update: func(before, updated *appsv1.ReplicaSet) {
				was, is := metav1.GetControllerOfNoCopy(before), metav1.GetControllerOfNoCopy(updated)
				if was != nil && (is == nil || is.UID != was.UID) {
					c.wake(before)
				}
				c.wake(updated)
			},
			Delete: func(rs *appsv1.ReplicaSet) {
				if metav1.GetControllerOfNoCopy(rs) != nil {
					c.wake(rs)
				}
			},
		}),
		// The deletion of the last old pod lets a Recreate deployment continue.
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{Delete: func(pod *corev1.Pod) {
			ref := metav1.GetControllerOfNoCopy(pod)
			if ref == nil || ref.Kind != "ReplicaSet" {
				return
			}
			if rs, err := c.sets.ReplicaSets(pod.Namespace).Get(ref.Name); err == nil && rs.UID == ref.UID {
				if o := c.owner(rs); o != nil && o.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
					c.queue.Add(controllers.Key(o))
				}
			}
		}}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) owner(rs *appsv1.ReplicaSet) *appsv1.Deployment {
	o, _ := workload.OwnerOf(rs, kind.Kind, c.deployments.Deployments(rs.Namespace).Get)
	return o
}

// wake enqueues the replica set's owner, or the deployments that may adopt it.
func (c *controller) wake(rs *appsv1.ReplicaSet) {
	if metav1.GetControllerOfNoCopy(rs) != nil {
		if o := c.owner(rs); o != nil {
			c.queue.Add(controllers.Key(o))
		}
		return
	}
	if len(rs.Labels) == 0 {
		return
	}
	all, err := c.deployments.Deployments(rs.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, o := range all {
		if selector, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil && !selector.Empty() &&
			selector.Matches(labels.Set(rs.Labels)) {
			c.queue.Add(controllers.Key(o))
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	cached, err := c.deployments.Deployments(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.written.forgetAll(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get deployment: %w", err)
	}
	if workload.LacksSelector(c.recorder, cached, "deployment", cached.Spec.Selector) {
		if cached.Status.ObservedGeneration >= cached.Generation {
			return nil
		}
		update := cached.DeepCopy()
		update.Status.ObservedGeneration = cached.Generation
		if _, err := c.client.AppsV1().Deployments(key.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update status: %w", err)
		}
		return nil
	}
	if ok, err := c.shown(ctx, key); !ok {
		return err
	}
	sets, err := c.claim(ctx, cached)
	if err != nil {
		return err
	}
	in := observed{deployment: cached, sets: sets, now: c.clock.Now()}
	if cached.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		if in.running, err = c.runningPods(sets); err != nil {
			return err
		}
	}
	out := decide(in)
	if out.again > 0 {
		c.queue.AddAfter(key, out.again)
	}
	return c.execute(ctx, cached, out)
}

func (c *controller) claim(ctx context.Context, d *appsv1.Deployment) ([]*appsv1.ReplicaSet, error) {
	all, err := workload.Children[*appsv1.ReplicaSet](c.setIndex, d, true)
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("deployment %s/%s has invalid label selector: %w", d.Namespace, d.Name, err)
	}
	return workload.Claim[*appsv1.ReplicaSet]{
		Owner: d, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
		},
		Patch: func(ctx context.Context, rs metav1.Object, patch []byte) error {
			_, err := c.client.AppsV1().ReplicaSets(rs.GetNamespace()).Patch(ctx, rs.GetName(), types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}.Settle(ctx, all)
}

// runningPods counts the unfinished pods of each replica set.
func (c *controller) runningPods(sets []*appsv1.ReplicaSet) (map[types.UID]int, error) {
	running := map[types.UID]int{}
	for _, rs := range sets {
		pods, err := workload.ByController(c.pods, rs, false)
		if err != nil {
			return nil, err
		}
		for _, pod := range pods {
			if !workload.Finished(pod) {
				running[rs.UID]++
			}
		}
	}
	return running, nil
}

// execute executes a decision: first it creates and updates, in order, then it deletes, then it writes the status.
func (c *controller) execute(ctx context.Context, cached *appsv1.Deployment, out decision) error {
	api := c.client.AppsV1()
	key := controllers.Key(cached)
	for _, w := range out.writes {
		var written *appsv1.ReplicaSet
		var err error
		if w.create {
			written, err = api.ReplicaSets(w.set.Namespace).Create(ctx, w.set, metav1.CreateOptions{})
		} else {
			written, err = api.ReplicaSets(w.set.Namespace).Update(ctx, w.set, metav1.UpdateOptions{})
		}
		if err != nil {
			c.written.note(key, w.set.Name, nil)
			if w.create {
				return c.createFailed(ctx, cached, w.set, err)
			}
			return fmt.Errorf("update replica set: %w", err)
		}
		c.written.note(key, w.set.Name, written)
		for _, said := range w.events {
			c.recorder.Event(cached, corev1.EventTypeNormal, "ScalingReplicaSet", said)
		}
	}
	for _, rs := range out.deletes {
		if err := api.ReplicaSets(rs.Namespace).Delete(ctx, rs.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete replica set: %w", err)
		}
	}
	if out.spec != nil {
		if _, err := api.Deployments(out.spec.Namespace).Update(ctx, out.spec, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update deployment: %w", err)
		}
	}
	if out.status != nil {
		if _, err := api.Deployments(out.status.Namespace).UpdateStatus(ctx, out.status, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update status: %w", err)
		}
	}
	for _, e := range out.events {
		c.recorder.Event(cached, e.level, e.reason, e.message)
	}
	return nil
}

// createFailed finds out what a refused creation means. The existing replica set may be the wanted one, created a moment ago and not in the
// cache yet; or it has another template with the same hash, and then the next hash must differ.
func (c *controller) createFailed(ctx context.Context, cached *appsv1.Deployment, wanted *appsv1.ReplicaSet, failure error) error {
	update := cached.DeepCopy()
	switch {
	case apierrors.IsAlreadyExists(failure):
		there, err := c.client.AppsV1().ReplicaSets(wanted.Namespace).Get(ctx, wanted.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get replica set: %w", err)
		}
		if workload.Controlled(there, cached) && sameTemplate(&there.Spec.Template, &cached.Spec.Template) {
			return nil // its event is on the way and requeues the deployment
		}
		var collisions int32
		if cached.Status.CollisionCount != nil {
			collisions = *cached.Status.CollisionCount
		}
		collisions++
		update.Status.CollisionCount = &collisions
	case apierrors.HasStatusCause(failure, corev1.NamespaceTerminatingCause):
		return failure
	default:
		message := fmt.Sprintf("Failed to create new replica set %q: %v", wanted.Name, failure)
		c.recorder.Event(cached, corev1.EventTypeWarning, reasonCreateError, message)
		if !hasDeadline(cached) {
			return failure
		}
		setCondition(&update.Status, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonCreateError, message, c.clock.Now())
	}
	if _, err := c.client.AppsV1().Deployments(update.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
		return errors.Join(failure, fmt.Errorf("update status: %w", err))
	}
	return failure
}
