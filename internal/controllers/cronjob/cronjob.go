// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cronjob creates Jobs on a schedule.
//
// Every sync decides anew from the CronJob, its Jobs and the time ([decide] in plan.go; the calendar in schedule.go): which outcomes to
// record, which old Jobs to delete, whether a start is due. Then it requeues its key with a delay until the next start. A Job's name is
// derived from the minute in which it is due, so the controller can try a start twice but not create two Jobs for it.
package cronjob

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

var kind = batchv1.SchemeGroupVersion.WithKind("CronJob")

// Controller describes the loop.
func Controller() controllers.Controller {
	crons, jobs := batchv1.SchemeGroupVersion.WithResource("cronjobs"), batchv1.SchemeGroupVersion.WithResource("jobs")
	return controllers.Controller{
		Name:    "cronjob-controller",
		Account: "cronjob-controller",
		Inputs:  []schema.GroupVersionResource{crons, jobs},
		Outputs: []schema.GroupVersionResource{crons, jobs},
		Syncs:   &controllers.Syncs{Flag: "concurrent-cron-job-syncs", Default: 5},
		New:     build,
	}
}

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	crons    listers.CronJobLister
	jobs     cache.Indexer
	writes   *workload.Writes
	skew     prometheus.Histogram
	queue    *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	crons, jobs := d.Informers.Batch().V1().CronJobs(), d.Informers.Batch().V1().Jobs()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, crons: crons.Lister(), jobs: jobs.Informer().GetIndexer(),
		writes: workload.NewWrites(),
		queue:  controllers.NewQueue[types.NamespacedName](d, "cronjob", d.Syncs()),
	}
	wake := func(j *batchv1.Job) {
		if ref := metav1.GetControllerOfNoCopy(j); ref != nil && ref.Kind == kind.Kind {
			c.queue.Add(types.NamespacedName{Namespace: j.Namespace, Name: ref.Name})
		}
	}
	kept, err := d.Metrics.Register(prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: "cronjob_controller", Name: "job_creation_skew_duration_seconds",
		Help:    "How long after the time that it was due a job was created.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	}))
	if err != nil {
		return nil, err
	}
	c.skew, _ = kept[0].(prometheus.Histogram)
	err = errors.Join(
		workload.IndexByController(jobs.Informer()),
		controllers.Subscribe(d, crons.Informer(), controllers.OnAny(func(cj *batchv1.CronJob) { c.queue.Add(controllers.Key(cj)) })),
		controllers.Subscribe(d, jobs.Informer(), controllers.OnAny(wake)),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	cj, err := c.crons.CronJobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get cron job: %w", err)
	}
	if !c.writes.Shown(cj) {
		return nil // a job that was replaced a moment ago would seem to be missing; its event brings it back
	}
	mine, err := workload.Children[*batchv1.Job](c.jobs, cj, false)
	if err != nil {
		return err
	}
	in := observed{cron: cj, jobs: mine, now: c.clock.Now()}
	// A new job may be in the status and not yet in the cache, or in the cache and not yet in the status.
	if in, err = c.refresh(ctx, in); err != nil {
		return err
	}
	out := decide(in)
	if out.again > 0 {
		c.queue.AddAfter(key, out.again)
	}
	return c.execute(ctx, in.cron, out)
}

// refresh reads from the server where the cache contradicts itself, so that the controller does not take a late job for a missing one.
// It does not record the end of such a job: the cache would then show the job for the first time, not ended and in no list, as if
// another client had created it.
func (c *controller) refresh(ctx context.Context, in observed) (observed, error) {
	there := map[types.UID]bool{}
	strange := false
	for _, j := range in.jobs {
		there[j.UID] = true
		d := decision{status: in.cron.Status}
		strange = strange || ended(j) == "" && !d.active(j.UID)
	}
	for _, ref := range in.cron.Status.Active {
		if there[ref.UID] {
			continue
		}
		j, err := c.client.BatchV1().Jobs(in.cron.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err == nil && j.UID == ref.UID {
			in.late = append(in.late, j)
		} else if err != nil && !apierrors.IsNotFound(err) {
			return in, fmt.Errorf("get job: %w", err)
		}
	}
	if strange {
		fresh, err := c.client.BatchV1().CronJobs(in.cron.Namespace).Get(ctx, in.cron.Name, metav1.GetOptions{})
		if err != nil {
			return in, fmt.Errorf("get cron job: %w", err)
		}
		if fresh.UID == in.cron.UID {
			in.cron = fresh
		}
	}
	return in, nil
}

func (c *controller) execute(ctx context.Context, cj *batchv1.CronJob, out decision) error {
	api := c.client.BatchV1().Jobs(cj.Namespace)
	for _, e := range out.events {
		c.recorder.Event(cj, e.level, e.reason, e.message)
	}
	var errs []error
	background := metav1.DeletePropagationBackground
	for _, j := range out.delete {
		err := api.Delete(ctx, j.Name, metav1.DeleteOptions{PropagationPolicy: &background,
			Preconditions: metav1.NewUIDPreconditions(string(j.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			c.recorder.Eventf(cj, corev1.EventTypeWarning, "FailedDelete", "Deleted job: %v", err)
			errs = append(errs, fmt.Errorf("delete job: %w", err))
			continue
		}
		out.forget(j.UID)
		c.recorder.Eventf(cj, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted job %v", j.Name)
	}
	if out.create != nil {
		if len(errs) > 0 {
			return errors.Join(errs...) // the jobs that the new one replaces must go first
		}
		if err := c.create(ctx, cj, &out); err != nil {
			return err
		}
	}
	if !equality.Semantic.DeepEqual(cj.Status, out.status) {
		update := cj.DeepCopy()
		update.Status = out.status
		updated, err := c.client.BatchV1().CronJobs(cj.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("update status: %w", err))...)
		}
		c.writes.Note(updated)
	}
	return errors.Join(errs...)
}

// create creates the job that is due and adds it to the status. If the job exists, an earlier sync has created it but could not write the
// status.
func (c *controller) create(ctx context.Context, cj *batchv1.CronJob, out *decision) error {
	api := c.client.BatchV1().Jobs(cj.Namespace)
	made, err := api.Create(ctx, out.create, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		if made, err = api.Get(ctx, out.create.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("get job: %w", err)
		}
		if !workload.Controlled(made, cj) {
			out.status.LastScheduleTime = cj.Status.LastScheduleTime
			return nil
		}
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return err
	case err != nil:
		c.recorder.Eventf(cj, corev1.EventTypeWarning, "FailedCreate", "Error creating job: %v", err)
		return fmt.Errorf("create job: %w", err)
	default:
		c.skew.Observe(made.CreationTimestamp.Sub(out.status.LastScheduleTime.Time).Seconds())
		c.recorder.Eventf(cj, corev1.EventTypeNormal, "SuccessfulCreate", "Created job %v", made.Name)
	}
	if !out.active(made.UID) && ended(made) == "" {
		out.status.Active = append(out.status.Active, corev1.ObjectReference{
			Kind: "Job", APIVersion: batchv1.SchemeGroupVersion.String(), Namespace: made.Namespace, Name: made.Name, UID: made.UID,
			ResourceVersion: made.ResourceVersion,
		})
	}
	return nil
}
