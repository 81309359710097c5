// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// outcome is the result of a sync.
type outcome struct {
	action string
	err    error
}

// execute decides and executes the decision. If it could not create or delete all pods, it still writes the status of the rest.
func (c *controller) execute(ctx context.Context, in observed) outcome {
	j, out := in.job, decide(in)
	stuck, failure := c.remove(ctx, j, out)
	if len(stuck) > 0 {
		in.stuck = stuck
		out = decide(in)
		out.create = nil
	}
	if out.again > 0 {
		c.queue.AddAfter(controllers.Key(j), out.again)
	}
	if len(out.create) > 0 {
		failure = c.make(ctx, j, &out)
	}
	done := outcome{out.action, failure}
	if !equality.Semantic.DeepEqual(j.Status, out.status) {
		update := j.DeepCopy()
		update.Status = out.status
		updated, err := c.client.BatchV1().Jobs(j.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
		if err != nil {
			done.err = errors.Join(failure, fmt.Errorf("update status: %w", err))
			return done
		}
		c.writes.Note(updated)
		c.meters.counted(j, updated, out.over)
	}
	c.records.Store(controllers.Key(j), remembered{j.UID, out.record})
	c.meters.ruled(out.ruled)
	for _, e := range out.events {
		c.recorder.Event(j, e.level, e.reason, e.message)
	}
	err := workload.Concurrently(len(out.release), 64, func(i int) error { return c.release(ctx, out.release[i]) })
	done.err = errors.Join(failure, err)
	return done
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
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err // also after a conflict: if another object has the name, the cache shows it by the next sync
}

// remove deletes the pods of a decision, and returns those that it could not delete.
func (c *controller) remove(ctx context.Context, j *batchv1.Job, out decision) (stuck map[types.UID]bool, err error) {
	if len(out.delete) == 0 {
		return nil, nil
	}
	key := controllers.Key(j)
	uids := make([]types.UID, len(out.delete))
	for i, pod := range out.delete {
		uids[i] = pod.UID
	}
	c.expectations.Expect(key, 0, uids...)
	var mu sync.Mutex
	stuck = map[types.UID]bool{}
	err = workload.Concurrently(len(uids), 64, func(i int) error {
		err := c.removeOne(ctx, j, out.delete[i], out.uncount)
		if err == nil {
			return nil
		}
		c.expectations.DeletionObserved(key, uids[i])
		if apierrors.IsNotFound(err) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		stuck[uids[i]] = true
		return err
	})
	return stuck, err
}

func (c *controller) removeOne(ctx context.Context, j *batchv1.Job, pod *corev1.Pod, uncount bool) error {
	if uncount {
		if err := c.release(ctx, pod); err != nil {
			return fmt.Errorf("removing completion finalizer: %w", err)
		}
	}
	return c.control.Delete(ctx, j, pod.Name)
}

// make creates the pods of a decision.
func (c *controller) make(ctx context.Context, j *batchv1.Job, out *decision) error {
	key := controllers.Key(j)
	c.expectations.Expect(key, len(out.create))
	made, err := workload.SlowStart(len(out.create), func(i int) error {
		_, err := c.control.Create(ctx, j, newPod(j, out.create[i]))
		return err
	})
	for range len(out.create) - made {
		c.expectations.CreationObserved(key)
	}
	out.status.Active -= int32(len(out.create) - made)
	c.meters.created(out.reason, made, err)
	return err
}

// newPod returns the pod of a creation.
func newPod(j *batchv1.Job, next creation) *corev1.Pod {
	pod := workload.PodFromTemplate(&j.Spec.Template, j, metav1.NewControllerRef(j, kind))
	if !tracked(pod) {
		pod.Finalizers = append(pod.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if next.index != noIndex {
		setIndex(pod, j, next.index)
		if j.Spec.BackoffLimitPerIndex != nil {
			setFailures(pod, j, next.replaces)
		}
	}
	return pod
}
