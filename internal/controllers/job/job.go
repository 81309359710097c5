// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package job runs Jobs: pods that have to succeed a number of times.
//
// Each pod carries the finalizer batch.kubernetes.io/job-tracking, so that it cannot vanish before the controller has counted its outcome.
// The controller first lists a finished pod in status.uncountedTerminatedPods; when that is written, it removes the pod's finalizer; and
// when the cache shows the pod without the finalizer, or gone, it moves the pod from the list into the counters. The objects record each
// step, so after a crash between two steps the next sync continues, and no pod counts twice: a status computed from a stale job conflicts.
//
//	plan.go     the decision, a pure function: count, judge, finish
//	manage.go   how many pods should run, and for which indexes
//	policy.go   the policies for pod failures and success
//	backoff.go  how long to wait after failures
//	indexes.go  sets of completion indexes and their text form
//	act.go      executes a decision
//	meters.go   metrics
package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
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
		Account: "job-controller",
		Inputs:  []schema.GroupVersionResource{jobs, pods},
		Outputs: []schema.GroupVersionResource{jobs, pods},
		Syncs:   &controllers.Syncs{Flag: "concurrent-job-syncs", Default: 5},
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

	// released are the UIDs of pods whose finalizer the controller has removed, until the cache shows it.
	released sync.Map

	// records are the histories of the jobs' failures, by key.
	records sync.Map

	meters *meters
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	jobs, pods := d.Informers.Batch().V1().Jobs(), d.Informers.Core().V1().Pods()
	c := &controller{
		client: d.Client, control: workload.Control{Client: d.Client, Recorder: d.Recorder}, recorder: d.Recorder, clock: d.Clock,
		jobs: jobs.Lister(), pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(), expectations: workload.NewExpectations(d.Clock),
		writes:  workload.NewWrites(),
		queue:   controllers.NewQueue[types.NamespacedName](d, "job", d.Syncs()),
		orphans: controllers.NewQueue[types.NamespacedName](d, "job_orphan_pod", 1),
	}
	var err error
	if c.meters, err = newMeters(d); err != nil {
		return nil, err
	}
	err = errors.Join(
		workload.IndexByController(pods.Informer()),
		controllers.Subscribe(d, jobs.Informer(), controllers.Handler[*batchv1.Job]{
			Add: func(j *batchv1.Job) {
				if foreign(j) {
					c.meters.foreign(*j.Spec.ManagedBy)
				}
				c.queue.Add(controllers.Key(j))
			},
			Update: func(_, j *batchv1.Job) { c.queue.Add(controllers.Key(j)) },
			Delete: func(j *batchv1.Job) {
				c.expectations.Forget(controllers.Key(j))
				c.records.Delete(controllers.Key(j))
				c.queue.Add(controllers.Key(j))
				c.freeAll(j)
			},
		}),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: func(pod *corev1.Pod) {
				if j := c.owner(pod); j != nil {
					c.expectations.CreationObserved(controllers.Key(j))
				}
				c.meters.tracked(nil, pod)
				c.podChanged(pod)
			},
			Update: func(before, updated *corev1.Pod) {
				c.meters.tracked(before, updated)
				if !tracked(updated) {
					c.released.Delete(updated.UID)
				}
				if updated.DeletionTimestamp != nil {
					if j := c.owner(updated); j != nil {
						c.expectations.DeletionObserved(controllers.Key(j), updated.UID)
					}
				}
				if was, is := metav1.GetControllerOfNoCopy(before),
					metav1.GetControllerOfNoCopy(updated); was != nil && (is == nil || is.UID != was.UID) {
					c.podChanged(before)
				}
				c.podChanged(updated)
			},
			Delete: func(pod *corev1.Pod) {
				c.meters.tracked(pod, nil)
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

// podChanged enqueues the pod's job, or the jobs that may adopt it; a pod that is held for a job that is gone is freed.
func (c *controller) podChanged(pod *corev1.Pod) {
	ref, j := metav1.GetControllerOfNoCopy(pod), c.owner(pod)
	if j != nil {
		c.queue.Add(controllers.Key(j))
	}
	// The cache may not show the job of a living pod yet.
	if tracked(pod) && (ref == nil || pod.DeletionTimestamp != nil && (j == nil || ended(j))) {
		c.orphans.Add(controllers.Key(pod))
	}
	if ref != nil {
		return
	}
	jobs, err := c.jobs.Jobs(pod.Namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, j := range jobs {
		if workload.Selects(j.Spec.Selector, pod) {
			c.queue.Add(controllers.Key(j))
		}
	}
}

func ended(j *batchv1.Job) bool {
	return find(j.Status.Conditions, batchv1.JobComplete) != nil || find(j.Status.Conditions, batchv1.JobFailed) != nil
}

// foreign reports whether another controller manages the job.
func foreign(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

// freeAll enqueues the pods of a deleted job, to remove their finalizers.
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

// free removes the finalizer from a pod that no job will count any more.
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

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expectations.Forget(key)
		c.writes.Forget(key)
		c.records.Delete(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get job: %w", err)
	}
	if foreign(j) || !c.writes.Shown(j) {
		return nil
	}
	if ended(j) {
		c.records.Delete(key)
		c.freeAll(j)
		return nil
	}
	if settled, wait := c.expectations.Satisfied(key); !settled {
		c.queue.AddAfter(key, wait) // the events of outstanding pods requeue it earlier
		return nil
	}
	began := c.clock.Now()
	pods, err := c.claim(ctx, j)
	if err != nil {
		return err
	}
	out := c.execute(ctx, c.observe(j, pods))
	c.meters.synced(j, out.action, out.err, c.clock.Since(began))
	return out.err
}

// observe gathers the input of a decision.
func (c *controller) observe(j *batchv1.Job, pods []*corev1.Pod) observed {
	in := observed{job: j, pods: pods, now: c.clock.Now(), released: map[types.UID]bool{}}
	for _, pod := range pods {
		if _, off := c.released.Load(pod.UID); off {
			in.released[pod.UID] = true
		}
	}
	if known, ok := c.records.Load(controllers.Key(j)); ok {
		if k, ok := known.(remembered); ok && k.uid == j.UID {
			in.record = &k.history
		}
	}
	return in
}

// remembered is the history of the job with a UID.
type remembered struct {
	uid types.UID
	history
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
	// An adopted pod shows its finalizer only in its next version, whose event requeues the job.
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return !workload.Controlled(pod, j) }), err
}
