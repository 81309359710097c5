// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// handler queues the pods of our nodes.
func (f *fleet) handler() cache.ResourceEventHandler {
	queue := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok && f.nodes[pod.Spec.NodeName] != nil {
			f.podQueue.Add(cache.MetaObjectToName(pod))
			f.followers.changed(pod)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    queue,
		UpdateFunc: func(_, obj any) { queue(obj) },
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				if n := f.nodes[pod.Spec.NodeName]; n != nil {
					n.pool.release(pod.UID)
					f.followers.gone(pod.UID)
				}
			}
		},
	}
}

// claimAddresses notes the addresses that pods have from before a restart.
func (f *fleet) claimAddresses() {
	all, err := f.pods.List(labels.Everything())
	if err != nil { // a lister over a cache has no way to fail
		panic("list pods from memory: " + err.Error())
	}
	for _, pod := range all {
		if n := f.nodes[pod.Spec.NodeName]; n != nil && !pod.Spec.HostNetwork && pod.Status.PodIP != "" {
			n.pool.claim(pod.UID, pod.Status.PodIP)
		}
	}
}

// podsAll is one worker.
func (f *fleet) podsAll(ctx context.Context) {
	for {
		key, shutdown := f.podQueue.Get()
		if shutdown {
			return
		}
		wake, err := f.pod(ctx, key)
		f.podQueue.Done(key)
		switch {
		case err != nil && ctx.Err() == nil:
			f.log.Warn("simulated pod not taken on; it is tried again", "pod", key, "error", err)
			f.podQueue.AddRateLimited(key)
		default:
			f.podQueue.Forget(key)
			if !wake.IsZero() {
				f.podQueue.AddAfter(key, max(wake.Sub(f.clock.Now()), 0))
			}
		}
	}
}

// pod takes one pod one step on, and says when it will have to be looked at again if nothing happens to it. Writing a
// status is an event itself, so the step after comes by itself.
func (f *fleet) pod(ctx context.Context, key cache.ObjectName) (wake time.Time, err error) {
	pod, err := f.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	n := f.nodes[pod.Spec.NodeName]
	if n == nil {
		return time.Time{}, nil
	}
	ctx = asNode(ctx, n.name)
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if over {
		n.pool.release(pod.UID)
		if pod.DeletionTimestamp == nil {
			return time.Time{}, nil
		}
		return time.Time{}, f.remove(ctx, pod)
	}
	if pod.DeletionTimestamp != nil && pod.Status.StartTime == nil {
		return time.Time{}, f.remove(ctx, pod)
	}
	ip := ""
	if !pod.Spec.HostNetwork {
		a, err := n.pool.take(pod.UID)
		if err != nil {
			return time.Time{}, err
		}
		ip = a.String()
	}
	status, wake := f.status(pod, ip)
	if !podstatus.Equal(pod.Status, status) {
		own := pod.DeepCopy()
		own.Status = status
		_, err := f.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, own, metav1.UpdateOptions{})
		// A conflict means that a newer pod is on its way to us.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return time.Time{}, fmt.Errorf("update status: %w", err)
		}
		return wake, nil
	}
	if pod.DeletionTimestamp != nil {
		return time.Time{}, f.remove(ctx, pod)
	}
	return wake, nil
}

// status is what the pod's status is to be, and when it will change by itself.
func (f *fleet) status(pod *corev1.Pod, ip string) (corev1.PodStatus, time.Time) {
	now := f.clock.Now()
	in := podstatus.Input{
		Pod: pod, HostIPs: []string{f.address}, Scheme: "simulated", Now: metav1.NewTime(now).Rfc3339Copy(),
		Started: func(*podstate.Container) bool { return true },
		Ready:   func(*podstate.Container) bool { return true },
	}
	var wake time.Time
	in.State, wake = runtimeState(pod, ip, now)
	in.Terminal = pod.DeletionTimestamp != nil
	if s := pod.Spec.ActiveDeadlineSeconds; s != nil && pod.Status.StartTime != nil {
		deadline := pod.Status.StartTime.Add(time.Duration(*s) * time.Second)
		if !now.Before(deadline) {
			in.Terminal, in.Reason, in.Message = true, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
			for i := range in.State.Containers {
				if c := &in.State.Containers[i]; c.State == podstate.Running {
					end(c, 137, now)
				}
			}
		} else if wake.IsZero() || deadline.Before(wake) {
			wake = deadline
		}
	}
	return podstatus.Make(in), wake
}

// remove deletes the pod for good: its node is done with it.
func (f *fleet) remove(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0 {
		return nil // it is only held by finalizers
	}
	now := int64(0)
	err := f.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod: %w", err)
	}
	return nil
}
