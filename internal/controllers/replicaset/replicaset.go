// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package replicaset keeps the number of pods that each ReplicaSet asks for.
//
// The sync takes hold of the pods that match the selector, compares their number with the wish, creates or deletes the
// difference, and writes the status. Which pods go is decided in plan.go and workload/rank.go, without I/O. Creations
// start slowly, and nothing is created or deleted while the cache has yet to show what was done before.
package replicaset

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Controller describes the loop.
func Controller() controllers.Controller {
	sets := appsv1.SchemeGroupVersion.WithResource("replicasets")
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:      "replicaset-controller",
		Component: "replicaset-controller",
		Inputs:    []schema.GroupVersionResource{sets, pods},
		Outputs:   []schema.GroupVersionResource{sets, pods},
		New:       build,
	}
}

type controller struct {
	client       kubernetes.Interface
	control      workload.Control
	clock        clock.PassiveClock
	sets         appslisters.ReplicaSetLister
	setIndex     cache.Indexer
	pods         cache.Indexer
	expectations *workload.Expectations
	queue        *controllers.Queue[types.NamespacedName]
}

// byOwner is the index of replica sets by the UID of their controller.
const byOwner = "controller"

func build(d *controllers.Deps) (controllers.Runner, error) {
	sets, pods := d.Informers.Apps().V1().ReplicaSets(), d.Informers.Core().V1().Pods()
	c := &controller{
		client:       d.Client,
		control:      workload.Control{Client: d.Client, Recorder: d.Recorder},
		clock:        d.Clock,
		sets:         sets.Lister(),
		setIndex:     sets.Informer().GetIndexer(),
		pods:         pods.Informer().GetIndexer(),
		expectations: workload.NewExpectations(d.Clock),
		queue:        controllers.NewQueue[types.NamespacedName](d, "replicaset", 5),
	}
	err := errors.Join(
		workload.IndexByController(pods.Informer()),
		controllers.Index(sets.Informer(), byOwner, func(obj any) ([]string, error) {
			if rs, ok := obj.(*appsv1.ReplicaSet); ok {
				if ref := metav1.GetControllerOfNoCopy(rs); ref != nil {
					return []string{string(ref.UID)}, nil
				}
			}
			return nil, nil
		}),
		controllers.Subscribe(d, sets.Informer(), controllers.Handler[*appsv1.ReplicaSet]{
			Add: func(rs *appsv1.ReplicaSet) { c.queue.Add(controllers.Key(rs)) },
			Update: func(before, now *appsv1.ReplicaSet) {
				if before.UID != now.UID {
					c.expectations.Forget(controllers.Key(now))
				}
				c.queue.Add(controllers.Key(now))
			},
			Delete: func(rs *appsv1.ReplicaSet) {
				c.expectations.Forget(controllers.Key(rs))
				c.queue.Add(controllers.Key(rs))
			},
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{Add: c.podAdded, Update: c.podUpdated, Delete: c.podDeleted}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// owner finds the replica set that ref speaks of.
func (c *controller) owner(namespace string, ref *metav1.OwnerReference) *appsv1.ReplicaSet {
	if ref == nil || ref.Kind != kind.Kind {
		return nil
	}
	rs, err := c.sets.ReplicaSets(namespace).Get(ref.Name)
	if err != nil || rs.UID != ref.UID {
		return nil
	}
	return rs
}

func (c *controller) podAdded(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		c.podDeleted(pod)
		return
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		c.wakeSuitors(pod)
		return
	}
	if rs := c.owner(pod.Namespace, ref); rs != nil {
		c.expectations.CreationObserved(controllers.Key(rs))
		c.queue.Add(controllers.Key(rs))
	}
}

func (c *controller) podUpdated(before, now *corev1.Pod) {
	if now.DeletionTimestamp != nil {
		// A replacement is due at once, not only when the node has finished with the pod.
		c.podDeleted(now)
		return
	}
	refBefore, refNow := metav1.GetControllerOfNoCopy(before), metav1.GetControllerOfNoCopy(now)
	if refBefore != nil && (refNow == nil || refNow.UID != refBefore.UID) {
		if rs := c.owner(before.Namespace, refBefore); rs != nil {
			c.queue.Add(controllers.Key(rs))
		}
	}
	if refNow == nil {
		c.wakeSuitors(now)
		return
	}
	if rs := c.owner(now.Namespace, refNow); rs != nil {
		c.queue.Add(controllers.Key(rs))
	}
}

func (c *controller) podDeleted(pod *corev1.Pod) {
	if rs := c.owner(pod.Namespace, metav1.GetControllerOfNoCopy(pod)); rs != nil {
		c.expectations.DeletionObserved(controllers.Key(rs), pod.UID)
		c.queue.Add(controllers.Key(rs))
	}
}

// wakeSuitors wakes those who may want to adopt an orphan.
func (c *controller) wakeSuitors(pod *corev1.Pod) {
	if len(pod.Labels) == 0 {
		return
	}
	sets, err := c.sets.ReplicaSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, rs := range sets {
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			c.queue.Add(controllers.Key(rs))
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	rs, err := c.sets.ReplicaSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get replica set: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return nil // validation lets no such selector in; there is nothing to retry
	}
	settled, wait := c.expectations.Satisfied(key)
	if !settled {
		c.queue.AddAfter(key, wait)
	}
	mine, err := workload.ByController(c.pods, rs, true)
	if err != nil {
		return err
	}
	active, err := c.claim(ctx, rs, selector, workload.Filter(mine, workload.Active))
	if err != nil {
		return err
	}
	terminating := workload.Filter(mine, func(p *corev1.Pod) bool {
		return workload.Terminating(p) && workload.Controlled(p, rs) && selector.Matches(labels.Set(p.Labels))
	})

	now := c.clock.Now()
	var failure error
	if settled && rs.DeletionTimestamp == nil {
		failure = c.execute(ctx, rs, decide(rs, active, c.neighbours(rs, active), now))
	}
	next := status(rs, active, terminating, failure, now)
	if changed(rs.Status, next) {
		update := rs.DeepCopy()
		update.Status = next
		if _, err := c.client.AppsV1().ReplicaSets(rs.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
			return errors.Join(failure, fmt.Errorf("update status: %w", err))
		}
	}
	if failure == nil && rs.Spec.MinReadySeconds > 0 && next.ReadyReplicas != next.AvailableReplicas {
		c.queue.AddAfter(key, max(workload.NextAvailable(active, rs.Spec.MinReadySeconds, now), time.Millisecond))
	}
	return failure
}

func (c *controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	return workload.Claim[*corev1.Pod]{
		Owner: rs, Kind: kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.AppsV1().ReplicaSets(rs.Namespace).Get(ctx, rs.Name, metav1.GetOptions{})
		},
		Patch: workload.PatchPod(c.client),
	}.Settle(ctx, pods)
}

// neighbours are the pods of the replica sets that share rs's owner; only a scale-down asks for them.
func (c *controller) neighbours(rs *appsv1.ReplicaSet, active []*corev1.Pod) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil || len(active) <= int(wanted(rs)) {
		return active
	}
	siblings, err := c.setIndex.ByIndex(byOwner, string(ref.UID))
	if err != nil {
		return active
	}
	var found []*corev1.Pod
	for _, s := range siblings {
		if sibling, ok := s.(*appsv1.ReplicaSet); ok {
			if pods, err := workload.ByController(c.pods, sibling, false); err == nil {
				found = append(found, pods...)
			}
		}
	}
	return found
}

// execute does what was decided.
func (c *controller) execute(ctx context.Context, rs *appsv1.ReplicaSet, p plan) error {
	key := controllers.Key(rs)
	switch {
	case p.create > 0:
		c.expectations.Expect(key, p.create)
		tried, err := workload.SlowStart(p.create, func(int) error {
			_, err := c.control.Create(ctx, rs, workload.PodFromTemplate(&rs.Spec.Template, rs, metav1.NewControllerRef(rs, kind)))
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // it will all go; an expectation that stays open does no harm
			}
			return err
		})
		for range p.create - tried {
			c.expectations.CreationObserved(key)
		}
		return err
	case len(p.delete) > 0:
		uids := make([]types.UID, len(p.delete))
		for i, pod := range p.delete {
			uids[i] = pod.UID
		}
		c.expectations.Expect(key, 0, uids...)
		return workload.Concurrently(len(p.delete), 64, func(i int) error {
			err := c.control.Delete(ctx, rs, p.delete[i].Name)
			if err == nil {
				return nil
			}
			c.expectations.DeletionObserved(key, uids[i])
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
	return nil
}
