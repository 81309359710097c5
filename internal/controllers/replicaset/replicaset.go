// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package replicaset keeps the number of pods that each ReplicaSet, and each ReplicationController, its predecessor, asks for.
//
// Both are one loop: a [source] provides the objects of either kind as sets (replicasets.go, replicationcontrollers.go). The sync adopts
// the pods that match the selector, compares their number with the replica count, creates or deletes the difference, and writes the status.
// plan.go and workload/rank.go choose the pods to delete, without I/O. Creations start slowly, and the controller creates and deletes no
// pods while the cache does not show its earlier writes.
package replicaset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// set is an object with a replica count, converted to a replica set.
type set struct {
	*appsv1.ReplicaSet
	// owner is the object itself, which events refer to.
	owner workload.Owner
}

// source provides the objects of one kind.
type source struct {
	kind schema.GroupVersionKind
	// get and list read the cache; list returns the sets of a namespace.
	get  func(namespace, name string) (set, error)
	list func(namespace string) ([]set, error)
	// fresh reads the object from the server.
	fresh func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// write stores a status.
	write func(ctx context.Context, s set, status appsv1.ReplicaSetStatus) error
	// siblings returns the sets with the same controller; nil: there are none.
	siblings func(ref *metav1.OwnerReference) ([]set, error)
	// terminating reports whether the status counts terminating pods.
	terminating bool
}

type controller struct {
	source
	client       kubernetes.Interface
	control      workload.Control
	clock        clock.PassiveClock
	pods         cache.Indexer
	expectations *workload.Expectations
	expecting    sync.Map // by key, the UID of the set whose writes are expected
	queue        *controllers.Queue[types.NamespacedName]
}

// newController creates the loop over a source, which enqueues sets through changed and gone.
func newController(d *controllers.Deps, queue string, s source) (*controller, error) {
	pods := d.Informers.Core().V1().Pods()
	c := &controller{
		source:       s,
		client:       d.Client,
		control:      workload.Control{Client: d.Client, Recorder: d.Recorder},
		clock:        d.Clock,
		pods:         pods.Informer().GetIndexer(),
		expectations: workload.NewExpectations(d.Clock),
		queue:        controllers.NewQueue[types.NamespacedName](d, queue, d.Syncs()),
	}
	return c, workload.PodEvents{Owned: c.owned, Orphan: c.wakeSuitors, Wake: c.queue.Add, Soon: c.soon,
		Expectations: c.expectations}.Subscribe(d, pods.Informer())
}

// soon enqueues a set after a delay that grows with it: 100 ms for 5,000 pods. Each sync reads all of the set's pods, and hundreds of them
// change in a second while they start.
func (c *controller) soon(key types.NamespacedName) {
	s, err := c.get(key.Namespace, key.Name)
	if err != nil {
		return
	}
	n := max(wanted(s.ReplicaSet), s.Status.Replicas)
	if n <= few {
		c.queue.Add(key)
		return
	}
	c.queue.AddAfter(key, min(time.Duration(n)*20*time.Microsecond, maxMoment))
}

const (
	few       = 250 // a sync of that many pods takes almost no time
	maxMoment = 200 * time.Millisecond
)

// Run reconciles until ctx ends.
func (c *controller) Run(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }

// changed handles an added or updated set. A new set of an old name has no expectations. If only the status changed, most often by the
// controller's own write, the sync may wait.
func (c *controller) changed(before, now metav1.Object) {
	key := controllers.Key(now)
	if before != nil && before.GetUID() != now.GetUID() {
		c.forget(key, before.GetUID())
	}
	if before != nil && before.GetUID() == now.GetUID() && before.GetGeneration() == now.GetGeneration() &&
		before.GetDeletionTimestamp().Equal(now.GetDeletionTimestamp()) {
		c.soon(key)
		return
	}
	c.queue.Add(key)
}

// gone handles the deletion of a set.
func (c *controller) gone(was metav1.Object) {
	c.forget(controllers.Key(was), was.GetUID())
	c.queue.Add(controllers.Key(was))
}

// forget drops the expectations of a deleted set, unless a newer set of the same name already has expectations.
func (c *controller) forget(key types.NamespacedName, gone types.UID) {
	if uid, ok := c.expecting.Load(key); !ok || uid == gone {
		c.expectations.Forget(key)
	}
}

func (c *controller) owned(pod *corev1.Pod) bool {
	_, ok := workload.OwnerOf(pod, c.kind.Kind, func(name string) (metav1.Object, error) {
		s, err := c.get(pod.Namespace, name)
		if err != nil {
			return nil, err
		}
		return s.ReplicaSet, nil
	})
	return ok
}

// wakeSuitors enqueues the owners that may adopt an orphan.
func (c *controller) wakeSuitors(pod *corev1.Pod) {
	sets, err := c.list(pod.Namespace)
	if err != nil {
		return
	}
	for _, rs := range sets {
		if workload.Selects(rs.Spec.Selector, pod) {
			c.queue.Add(controllers.Key(rs.ReplicaSet))
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	rs, err := c.get(key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		c.expecting.Delete(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get %s: %w", c.kind.Kind, err)
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err != nil {
		return nil // validation rejects such a selector; a retry cannot help
	}
	settled, wait := c.expectations.Satisfied(key)
	if !settled {
		c.queue.AddAfter(key, wait)
	}
	mine, err := workload.ByController(c.pods, rs.ReplicaSet, true)
	if err != nil {
		return err
	}
	active, err := c.claim(ctx, rs.ReplicaSet, selector, workload.Filter(mine, workload.Active))
	if err != nil {
		return err
	}
	terminating := workload.Filter(mine, func(p *corev1.Pod) bool {
		return workload.Terminating(p) && workload.Controlled(p, rs.ReplicaSet) && selector.Matches(labels.Set(p.Labels))
	})

	now := c.clock.Now()
	var failure error
	if settled && rs.DeletionTimestamp == nil {
		failure = c.execute(ctx, rs, decide(rs.ReplicaSet, active, c.neighbours(rs.ReplicaSet, active), now))
	}
	next := status(rs.ReplicaSet, active, terminating, failure, now)
	if !c.terminating {
		next.TerminatingReplicas = nil
	}
	if changed(rs.Status, next) {
		if err := c.write(ctx, rs, next); err != nil {
			return errors.Join(failure, fmt.Errorf("update status: %w", err))
		}
	}
	if failure == nil && rs.Spec.MinReadySeconds > 0 && next.ReadyReplicas != next.AvailableReplicas {
		// A pod without the time since when it is ready causes no event when it becomes available.
		c.queue.AddAfter(key, cmp.Or(workload.NextAvailable(active, rs.Spec.MinReadySeconds, now),
			time.Duration(rs.Spec.MinReadySeconds)*time.Second))
	}
	return failure
}

func (c *controller) claim(ctx context.Context, rs *appsv1.ReplicaSet, selector labels.Selector, pods []*corev1.Pod) ([]*corev1.Pod,
	error) {
	return workload.Claim[*corev1.Pod]{
		Owner: rs, Kind: c.kind, Selector: selector,
		Fresh: func(ctx context.Context) (metav1.Object, error) { return c.fresh(ctx, rs.Namespace, rs.Name) },
		Patch: workload.PatchPod(c.client),
	}.Settle(ctx, pods)
}

// neighbours returns the pods of the replica sets that share rs's owner; only scaling down needs them.
func (c *controller) neighbours(rs *appsv1.ReplicaSet, active []*corev1.Pod) []*corev1.Pod {
	ref := metav1.GetControllerOfNoCopy(rs)
	if ref == nil || c.siblings == nil || len(active) <= int(wanted(rs)) {
		return nil
	}
	siblings, err := c.siblings(ref)
	if err != nil {
		return nil
	}
	var found []*corev1.Pod
	for _, s := range siblings {
		if pods, err := workload.ByController(c.pods, s.ReplicaSet, false); err == nil {
			found = append(found, pods...)
		}
	}
	return found
}

// execute executes a plan.
func (c *controller) execute(ctx context.Context, rs set, p plan) error {
	key := controllers.Key(rs.ReplicaSet)
	c.expecting.Store(key, rs.UID)
	switch {
	case p.create > 0:
		c.expectations.Expect(key, p.create)
		tried, err := workload.SlowStart(p.create, func(int) error {
			_, err := c.control.Create(ctx, rs.owner, workload.PodFromTemplate(&rs.Spec.Template, rs.ReplicaSet,
				metav1.NewControllerRef(rs.ReplicaSet, c.kind)))
			if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				return nil // its objects will all be deleted; an open expectation does no harm
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
			err := c.control.Delete(ctx, rs.owner, p.delete[i].Name)
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
