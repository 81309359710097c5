// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package job runs Jobs: pods that are to end well a number of times.
//
// Each pod carries the finalizer batch.kubernetes.io/job-tracking, so that none can vanish before its outcome is counted.
// A pod that ended is first listed in status.uncountedTerminatedPods; when that is written its finalizer is taken off;
// and when the cache shows it without the finalizer, or gone, it moves from the list into the counters. Each step is
// seen in the objects themselves, so a crash between any two is merely continued, and no pod is counted twice: a status
// computed from a stale job conflicts.
//
//	plan.go     the decision, a pure function: count, judge, finish
//	manage.go   how many pods should run, which indexes, and how long to wait after failures
//	indexes.go  completion indexes and their text form
package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

// Controller describes the loop.
func Controller() controllers.Controller {
	jobs, pods := batchv1.SchemeGroupVersion.WithResource("jobs"), corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:    "job-controller",
		Inputs:  []schema.GroupVersionResource{jobs, pods},
		Outputs: []schema.GroupVersionResource{jobs, pods},
		New:     build,
	}
}

type controller struct {
	client       kubernetes.Interface
	control      workload.Control
	recorder     record.EventRecorder
	clock        clock.PassiveClock
	jobs         batchlisters.JobLister
	pods         corelisters.PodLister
	podIndex     cache.Indexer
	expectations *workload.Expectations
	writes       *workload.Writes
	queue        *controllers.Queue[types.NamespacedName]
	orphans      *controllers.Queue[types.NamespacedName]

	// released are pods whose finalizer was taken off, until the cache shows it.
	released sync.Map
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	jobs, pods := d.Informers.Batch().V1().Jobs(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, control: workload.Control{Client: d.Client, Recorder: d.Recorder}, recorder: d.Recorder, clock: d.Clock,
		jobs: jobs.Lister(), pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(), expectations: workload.NewExpectations(d.Clock), writes: workload.NewWrites(),
		queue:   controllers.NewQueue[types.NamespacedName](d, "job", 5),
		orphans: controllers.NewQueue[types.NamespacedName](d, "job-orphans", 1),
	}
	err := errors.Join(
		workload.IndexByController(pods.Informer()),
		controllers.Subscribe(d, jobs.Informer(), controllers.Handler[*batchv1.Job]{
			Add:    func(j *batchv1.Job) { c.queue.Add(controllers.Key(j)) },
			Update: func(_, j *batchv1.Job) { c.queue.Add(controllers.Key(j)) },
			Delete: func(j *batchv1.Job) {
				c.expectations.Forget(controllers.Key(j))
				c.queue.Add(controllers.Key(j))
				c.freeAll(j)
			},
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: func(pod *corev1.Pod) {
				if j := c.owner(pod); j != nil {
					c.expectations.CreationObserved(controllers.Key(j))
				}
				c.podChanged(pod)
			},
			Update: func(before, now *corev1.Pod) {
				if !tracked(now) {
					c.released.Delete(now.UID)
				}
				if now.DeletionTimestamp != nil {
					if j := c.owner(now); j != nil {
						c.expectations.DeletionObserved(controllers.Key(j), now.UID)
					}
				}
				if was, is := metav1.GetControllerOfNoCopy(before), metav1.GetControllerOfNoCopy(now); was != nil && (is == nil || is.UID != was.UID) {
					c.podChanged(before)
				}
				c.podChanged(now)
			},
			Delete: func(pod *corev1.Pod) {
				c.released.Delete(pod.UID)
				if j := c.owner(pod); j != nil {
					c.expectations.DeletionObserved(controllers.Key(j), pod.UID)
					c.queue.Add(controllers.Key(j))
				}
			},
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return c.queue.Run(ctx, c.sync) })
		group.Go(func() error { return c.orphans.Run(ctx, c.free) })
		return group.Wait()
	}), err
}

func (c *controller) owner(pod *corev1.Pod) *batchv1.Job {
	o, _ := workload.OwnerOf(pod, kind.Kind, c.jobs.Jobs(pod.Namespace).Get)
	return o
}

// podChanged wakes the pod's job, or those who may adopt it; a pod that is held for a job that is gone is freed.
func (c *controller) podChanged(pod *corev1.Pod) {
	j := c.owner(pod)
	if j != nil {
		c.queue.Add(controllers.Key(j))
	}
	if tracked(pod) && (j == nil || ended(j)) {
		c.orphans.Add(controllers.Key(pod))
	}
	if metav1.GetControllerOfNoCopy(pod) != nil || len(pod.Labels) == 0 {
		return
	}
	jobs, err := c.jobs.Jobs(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, j := range jobs {
		if selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			c.queue.Add(controllers.Key(j))
		}
	}
}

func ended(j *batchv1.Job) bool {
	return find(j.Status.Conditions, batchv1.JobComplete) != nil || find(j.Status.Conditions, batchv1.JobFailed) != nil
}

// foreign tells whether another controller manages the job.
func foreign(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// freeAll frees the pods of a job that is gone.
func (c *controller) freeAll(j *batchv1.Job) {
	pods, err := workload.ByController(c.podIndex, j, false)
	if err != nil {
		return
	}
	for _, pod := range pods {
		if tracked(pod) {
			c.orphans.Add(controllers.Key(pod))
		}
	}
}

// free takes the finalizer off a pod that no job will count any more.
func (c *controller) free(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		if ref.Kind != kind.Kind || ref.APIVersion != batchv1.SchemeGroupVersion.String() {
			return nil
		}
		if j := c.owner(pod); j != nil && (foreign(j) || !ended(j)) {
			return nil
		}
	}
	return c.release(ctx, pod)
}

func (c *controller) release(ctx context.Context, pod *corev1.Pod) error {
	if _, done := c.released.Load(pod.UID); done || !tracked(pod) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"$deleteFromPrimitiveList/finalizers": []string{batchv1.JobTrackingFinalizer}, "uid": pod.UID,
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	c.released.Store(pod.UID, true)
	_, err = c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		c.released.Delete(pod.UID)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another has its name
	}
	return err
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		c.writes.Forget(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get job: %w", err)
	}
	if foreign(j) || !c.writes.Shown(j) {
		return nil
	}
	if ended(j) {
		c.freeAll(j)
		return nil
	}
	settled, wait := c.expectations.Satisfied(key)
	if !settled {
		c.queue.AddAfter(key, wait)
	}
	pods, err := c.claim(ctx, j)
	if err != nil {
		return err
	}
	out := decide(observed{job: j, pods: pods, settled: settled, now: c.clock.Now()})
	if out.again > 0 {
		c.queue.AddAfter(key, out.again)
	}
	return c.execute(ctx, j, out)
}

func (c *controller) claim(ctx context.Context, j *batchv1.Job) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("read selector: %w", err)
	}
	pods, err := workload.ByController(c.podIndex, j, true)
	if err != nil {
		return nil, err
	}
	pods, err = workload.Claim[*corev1.Pod]{
		Owner: j, Kind: kind, Selector: selector, Finalizers: []string{batchv1.JobTrackingFinalizer},
		Fresh: func(ctx context.Context) (metav1.Object, error) {
			return c.client.BatchV1().Jobs(j.Namespace).Get(ctx, j.Name, metav1.GetOptions{})
		},
		Patch: workload.PatchPod(c.client),
	}.Settle(ctx, pods)
	// What was adopted just now shows its finalizer only in its next version; its event brings us back.
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !workload.Controlled(pod, j) }), err
}

// execute carries a decision out. When pods could not be made or deleted, the status says what became of the rest.
func (c *controller) execute(ctx context.Context, j *batchv1.Job, out decision) error {
	failure := c.scale(ctx, j, &out)
	if !equality.Semantic.DeepEqual(j.Status, out.status) {
		update := j.DeepCopy()
		update.Status = out.status
		now, err := c.client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
		if err != nil {
			return errors.Join(failure, fmt.Errorf("update status: %w", err))
		}
		c.writes.Note(now)
	}
	for _, e := range out.events {
		c.recorder.Event(j, e.level, e.reason, e.message)
	}
	err := workload.Concurrently(len(out.release), 64, func(i int) error { return c.release(ctx, out.release[i]) })
	return errors.Join(failure, err)
}

// scale deletes or makes the pods of a decision; one has only either.
func (c *controller) scale(ctx context.Context, j *batchv1.Job, out *decision) error {
	key := controllers.Key(j)
	switch {
	case len(out.delete) > 0:
		uids := make([]types.UID, len(out.delete))
		for i, pod := range out.delete {
			uids[i] = pod.UID
		}
		c.expectations.Expect(key, 0, uids...)
		return workload.Concurrently(len(uids), 64, func(i int) error {
			err := c.control.Delete(ctx, j, out.delete[i].Name)
			if err == nil {
				return nil
			}
			c.expectations.DeletionObserved(key, uids[i])
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	case len(out.create) > 0:
		c.expectations.Expect(key, len(out.create))
		made, err := workload.SlowStart(len(out.create), func(i int) error {
			pod := workload.PodFromTemplate(&j.Spec.Template, j, metav1.NewControllerRef(j, kind))
			if !tracked(pod) {
				pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
			}
			if out.create[i] != noIndex {
				setIndex(pod, j, out.create[i])
			}
			_, err := c.control.Create(ctx, j, pod)
			return err
		})
		for range len(out.create) - made {
			c.expectations.CreationObserved(key)
		}
		out.status.Active -= int32(len(out.create) - made)
		return err
	}
	return nil
}
