// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// handler returns the event handler that queues the pods of our nodes.
func (f *fleet) handler() cache.ResourceEventHandler {
	queue := func(obj any) {
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		if n := f.nodes.get(pod.Spec.NodeName); n != nil {
			f.podQueue.Add(cache.MetaObjectToName(pod))
			f.followers.changed(pod)
			n.meters.update(pod, f.clock.Now(), usageOn(f, n, pod).milliCPU)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: queue,
		UpdateFunc: func(before, obj any) {
			queue(obj)
			if was, ok := before.(*corev1.Pod); ok {
				if is, ok := obj.(*corev1.Pod); ok && was.Status.Phase != is.Status.Phase {
					f.shareAgain(is)
				}
			}
		},
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				if n := f.nodes.get(pod.Spec.NodeName); n != nil {
					n.pool.release(pod.UID)
					n.room.release(pod.UID)
					n.meters.drop(pod.UID, f.clock.Now())
					f.followers.gone(pod.UID)
					f.shareAgain(pod)
				}
			}
		},
	}
}

// claim restores the addresses and requests of pods from before a restart: on one node, or on all if node is empty.
func (f *fleet) claim(node string) {
	for _, pod := range f.pods.all() {
		n := f.nodes.get(pod.Spec.NodeName)
		if n == nil || node != "" && n.name != node || over(pod) || pod.Status.StartTime == nil {
			continue
		}
		n.room.take(pod, n.size)
		if !pod.Spec.HostNetwork && pod.Status.PodIP != "" {
			n.pool.claim(pod.UID, pod.Status.PodIP)
		}
	}
}

// podCache reads the cluster's pods from the informer. They are shared and read-only.
type podCache struct {
	listers.PodLister
	index cache.Indexer
}

// byNode is the name of the index of pods by node.
const byNode = "node"

// byController is the name of the index of running pods by the UID of their controller.
const byController = "controller"

// newPodCache returns the cache of an informer that has not started.
func newPodCache(informer coreinformers.PodInformer) (podCache, error) {
	c := podCache{informer.Lister(), informer.Informer().GetIndexer()}
	err := informer.Informer().AddIndexers(cache.Indexers{
		byNode: func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		},
		byController: func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
				if c := metav1.GetControllerOfNoCopy(pod); c != nil {
					return []string{string(c.UID)}, nil
				}
			}
			return nil, nil
		},
	})
	if err != nil {
		return c, fmt.Errorf("index pods: %w", err)
	}
	return c, nil
}

// all returns all pods of the cluster.
func (c podCache) all() []*corev1.Pod {
	all, err := c.List(labels.Everything())
	if err != nil { // a lister over a cache cannot fail
		panic("list pods from memory: " + err.Error())
	}
	return all
}

// on returns the pods bound to a node.
func (c podCache) on(node string) []*corev1.Pod {
	all, err := c.index.ByIndex(byNode, node)
	if err != nil { // only a missing index fails
		panic("list pods of a node from memory: " + err.Error())
	}
	out := make([]*corev1.Pod, 0, len(all))
	for _, obj := range all {
		if pod, ok := obj.(*corev1.Pod); ok {
			out = append(out, pod)
		}
	}
	return out
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
			if n := f.podQueue.NumRequeues(key); seldom(n) {
				f.log.Warn("Could not start a simulated pod, retrying", "pod", key, "error", err, "failures", n+1)
			}
			f.podQueue.AddRateLimited(key)
		default:
			f.podQueue.Forget(key)
			if !wake.IsZero() {
				f.podQueue.AddAfter(key, max(wake.Sub(f.clock.Now()), 0))
			}
		}
	}
}

// pod makes the next step for one pod, and returns when to look again if no event occurs. Writing a status causes an event, so the next
// step needs no timer.
func (f *fleet) pod(ctx context.Context, key cache.ObjectName) (wake time.Time, err error) {
	pod, err := f.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	n := f.nodes.get(pod.Spec.NodeName)
	if n == nil {
		return time.Time{}, nil
	}
	ctx = asNode(ctx, n.name)
	if over(pod) {
		n.pool.release(pod.UID)
		n.room.release(pod.UID)
		if pod.DeletionTimestamp == nil {
			return time.Time{}, nil
		}
		return f.remove(ctx, pod)
	}
	if pod.DeletionTimestamp != nil && pod.Status.StartTime == nil {
		return f.remove(ctx, pod)
	}
	if reject := n.room.take(pod, n.size); reject != nil {
		return time.Time{}, f.reject(ctx, pod, reject)
	}
	ip := ""
	if !pod.Spec.HostNetwork {
		a, err := n.pool.take(pod.UID)
		if err != nil {
			return time.Time{}, err
		}
		ip = a.String()
	}
	status, wake := f.status(pod, n.address, ip, f.phases(n))
	if !podstatus.Equal(pod.Status, status) {
		if podstatus.Ended(status.Phase) { // with the write, the scheduler gives what the pod had to the next one
			n.room.release(pod.UID)
		}
		own := pod.DeepCopy()
		own.Status = status
		_, err := f.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, own, metav1.UpdateOptions{})
		// A conflict means that a newer version of the pod is about to arrive.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return time.Time{}, fmt.Errorf("update status: %w", err)
		}
		return wake, nil
	}
	if pod.DeletionTimestamp != nil {
		return f.remove(ctx, pod)
	}
	return wake, nil
}

func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// reject sets a pod that never started to Failed.
func (f *fleet) reject(ctx context.Context, pod *corev1.Pod, r *podfit.Rejection) error {
	own, now := pod.DeepCopy(), metav1.NewTime(f.clock.Now()).Rfc3339Copy()
	own.Status.Phase, own.Status.Reason, own.Status.Message, own.Status.StartTime = corev1.PodFailed, r.Reason, r.StatusMessage(), &now
	_, err := f.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, own, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reject pod: %w", err)
	}
	return nil
}

// status computes the pod's status, and when it will change without an event.
func (f *fleet) status(pod *corev1.Pod, address netip.Addr, ip string, takes Phases) (corev1.PodStatus, time.Time) {
	now := f.clock.Now()
	in := podstatus.Input{
		Pod: pod, HostIPs: []string{address.String()}, Scheme: "simulated", Now: metav1.NewTime(now).Rfc3339Copy(),
		Started: func(*podstate.Container) bool { return true },
		Ready:   func(c *podstate.Container) bool { return !now.Before(c.Started.Add(takes.Ready)) },
	}
	var wake time.Time
	in.State, wake = runtimeState(pod, ip, now, takes)
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

// remove deletes the pod, because its node has finished with it. A pod without remaining grace period is either held by finalizers, or
// already being deleted by the request that removed the grace period. It still exists a while later only if the server stopped in between;
// then remove deletes it again.
func (f *fleet) remove(ctx context.Context, pod *corev1.Pod) (wake time.Time, err error) {
	if g := pod.DeletionGracePeriodSeconds; g != nil && *g == 0 {
		if len(pod.Finalizers) > 0 {
			return time.Time{}, nil
		}
		if late := pod.DeletionTimestamp.Add(2 * time.Second); f.clock.Now().Before(late) {
			return late, nil
		}
	}
	now := int64(0)
	err = f.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return time.Time{}, fmt.Errorf("delete pod: %w", err)
	}
	return time.Time{}, nil
}
