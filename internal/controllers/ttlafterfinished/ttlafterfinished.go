// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package ttlafterfinished deletes finished Jobs once spec.ttlSecondsAfterFinished has passed.
package ttlafterfinished

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/batch/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	jobs := []schema.GroupVersionResource{batchv1.SchemeGroupVersion.WithResource("jobs")}
	const name = "ttl-after-finished-controller"
	return controllers.Controller{
		Name: name, Account: name, Inputs: jobs, Outputs: jobs, New: build,
		Syncs: &controllers.Syncs{Flag: "concurrent-ttl-after-finished-syncs", Default: 5},
	}
}

type controller struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	jobs   listers.JobLister
	queue  *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	jobs := d.Informers.Batch().V1().Jobs()
	c := &controller{client: d.Client, clock: d.Clock, jobs: jobs.Lister(),
		queue: controllers.NewQueue[types.NamespacedName](d, "ttl_jobs_to_delete", d.Syncs())}
	wake := func(j *batchv1.Job) {
		if _, ok := expiry(j); ok {
			c.queue.Add(controllers.Key(j))
		}
	}
	err := controllers.Subscribe(d, jobs.Informer(), controllers.Handler[*batchv1.Job]{
		Add: wake, Update: func(_, j *batchv1.Job) { wake(j) },
	})
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// expiry returns when to delete a job; false if it stays.
func expiry(j *batchv1.Job) (time.Time, bool) {
	if j.Spec.TTLSecondsAfterFinished == nil || j.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Add(time.Duration(*j.Spec.TTLSecondsAfterFinished) * time.Second), true
		}
	}
	return time.Time{}, false
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	j, err := c.jobs.Jobs(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get job: %w", err)
	}
	at, ok := expiry(j)
	if !ok {
		return nil
	}
	if left := at.Sub(c.clock.Now()); left > 0 {
		c.queue.AddAfter(key, left)
		return nil
	}
	foreground := metav1.DeletePropagationForeground
	err = c.client.BatchV1().Jobs(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		PropagationPolicy: &foreground,
		// A user may have raised its time to live a moment ago.
		Preconditions: &metav1.Preconditions{UID: &j.UID, ResourceVersion: &j.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
