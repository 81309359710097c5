// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package statefulset gives each StatefulSet its pods, SET-0, SET-1 …, each with claims of its own, in order or in parallel.
//
// One pure function decides what to do next ([decide] in plan.go). identity.go defines a pod's identity, retention.go how long its claims
// live, and revision.go the history of templates, which kubectl uses to roll back. This file watches, and executes decisions.
package statefulset

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

// Controller describes the loop.
func Controller() controllers.Controller {
	sets, revisions := appsv1.SchemeGroupVersion.WithResource("statefulsets"), appsv1.SchemeGroupVersion.WithResource("controllerrevisions")
	pods, claims := corev1.SchemeGroupVersion.WithResource("pods"), corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	return controllers.Controller{
		Name:    "statefulset-controller",
		Account: "statefulset-controller",
		Inputs:  []schema.GroupVersionResource{sets, revisions, pods, claims},
		Outputs: []schema.GroupVersionResource{sets, revisions, pods, claims},
		Syncs:   &controllers.Syncs{Flag: "concurrent-statefulset-syncs", Default: 5},
		New:     build,
	}
}

type controller struct {
	client       kubernetes.Interface
	recorder     record.EventRecorder
	clock        clock.PassiveClock
	sets         appslisters.StatefulSetLister
	revisions    appslisters.ControllerRevisionLister
	claims       corelisters.PersistentVolumeClaimLister
	pods         cache.Indexer
	expectations *workload.Expectations
	writes       *workload.Writes
	queue        *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	apps, core := d.Informers.Apps().V1(), d.Informers.Core().V1()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock,
		sets: apps.StatefulSets().Lister(), revisions: apps.ControllerRevisions().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		pods: core.Pods().Informer().GetIndexer(), expectations: workload.NewExpectations(d.Clock), writes: workload.NewWrites(),
		queue: controllers.NewQueue[types.NamespacedName](d, "statefulset", d.Syncs()),
	}
	d.Await(apps.ControllerRevisions().Informer())
	d.Await(core.PersistentVolumeClaims().Informer())
	err := errors.Join(
		controllers.Subscribe(d, apps.StatefulSets().Informer(),
			controllers.OnAny(func(set *appsv1.StatefulSet) { c.queue.Add(controllers.Key(set)) })),
		workload.PodEvents{Owned: c.owned, Orphan: c.wakeSuitors, Wake: c.queue.Add, Expectations: c.expectations}.Subscribe(d,
			core.Pods().Informer()),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) owned(pod *corev1.Pod) bool {
	_, ok := workload.OwnerOf(pod, kind.Kind, c.sets.StatefulSets(pod.Namespace).Get)
	return ok
}

// wakeSuitors enqueues the set that would adopt a pod, which the pod's name tells.
func (c *controller) wakeSuitors(pod *corev1.Pod) {
	parent, n := ordinal(pod)
	if n < 0 {
		return
	}
	if set, err := c.sets.StatefulSets(pod.Namespace).Get(parent); err == nil {
		c.queue.Add(controllers.Key(set))
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	set, err := c.sets.StatefulSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		c.writes.Forget(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get stateful set: %w", err)
	}
	if !c.writes.Shown(set) {
		return nil // its event brings it back
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil // validation rejects such a selector, and a retry cannot help
	}
	settled, wait := c.expectations.Satisfied(key) // read before the cache: what the cache shows later may be older than this answer
	if !settled {
		c.queue.AddAfter(key, wait)
	}
	pods, err := c.claimPods(ctx, set, selector)
	if err != nil {
		return err
	}
	history, err := c.history(ctx, set, selector)
	if err != nil {
		return err
	}
	in := observed{set: set, pods: pods, settled: settled, now: c.clock.Now(), claim: func(name string) *corev1.PersistentVolumeClaim {
		claim, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(name)
		if err != nil {
			return nil
		}
		return claim
	}}
	if set.DeletionTimestamp == nil {
		if history, err = c.revise(ctx, &in, history); err != nil {
			return err
		}
	} else if !in.known(history) {
		return nil // the set is being deleted, and has no revision
	}
	out := decide(in)
	if out.again > 0 {
		c.queue.AddAfter(key, out.again)
	}
	return errors.Join(c.execute(ctx, &in, out), c.prune(ctx, &in, history))
}

func (c *controller) claimPods(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector) ([]*corev1.Pod, error) {
	pods, err := workload.ByController(c.pods, set, true)
	if err != nil {
		return nil, err
	}
	// A pod with another name is not the set's, whatever its labels are.
	pods = workload.Filter(pods, func(pod *corev1.Pod) bool { return workload.Controlled(pod, set) || member(set, pod) })
	return workload.Claim[*corev1.Pod]{
		Owner: set, Kind: kind, Selector: selector, Fresh: c.fresh(set), Patch: workload.PatchPod(c.client),
	}.Settle(ctx, pods)
}

func (c *controller) fresh(set *appsv1.StatefulSet) func(context.Context) (metav1.Object, error) {
	return func(ctx context.Context) (metav1.Object, error) {
		return c.client.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	}
}

// execute executes a decision, then writes the status, even if a step failed.
func (c *controller) execute(ctx context.Context, in *observed, out decision) error {
	failure := c.do(ctx, in, out)
	status := &out.status
	complete(in.set, status)
	before := in.set.Status
	if equality.Semantic.DeepEqual(before, *status) {
		return failure
	}
	update := in.set.DeepCopy()
	update.Status = *status
	updated, err := c.client.AppsV1().StatefulSets(in.set.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
	if err != nil {
		return errors.Join(failure, fmt.Errorf("update status: %w", err))
	}
	c.writes.Note(updated)
	return failure
}

func (c *controller) do(ctx context.Context, in *observed, out decision) error {
	key := controllers.Key(in.set)
	var made int
	var going []types.UID
	for _, steps := range out.phases {
		for _, s := range steps {
			switch s.what {
			case create:
				made++
			case remove:
				going = append(going, s.pod.UID)
			}
		}
	}
	if made+len(going) > 0 {
		c.expectations.Expect(key, made, going...)
	}
	// Forget the expectations of steps that were not done.
	undone := func(s step) {
		switch s.what {
		case create:
			c.expectations.CreationObserved(key)
		case remove:
			c.expectations.DeletionObserved(key, s.pod.UID)
		}
	}
	var failure error
	for _, steps := range out.phases {
		did := make([]bool, len(steps))
		do := func(i int) error {
			done, err := c.step(ctx, in, steps[i])
			did[i] = done
			return err
		}
		switch {
		case failure != nil:
		case ordered(in.set):
			for i := range steps {
				if failure = do(i); failure != nil {
					break
				}
			}
		default:
			_, failure = workload.SlowStart(len(steps), do)
		}
		for i, s := range steps {
			if !did[i] {
				undone(s)
			} else if s.update {
				out.status.CurrentReplicas-- // the next event shows its deletion
			}
		}
	}
	return failure
}
