// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimprotection keeps a deleted PersistentVolumeClaim until no pod uses it, by the finalizer kubernetes.io/pvc-protection. Claims
// get the finalizer when they are created, or from this controller.
//
// A pod uses a claim from its binding to a node until its deletion: a kubelet does not start a pod whose claim is being deleted. A claim
// that a pod's template made for it is free as soon as the pod has terminated.
package claimprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

const finalizer = "kubernetes.io/pvc-protection"

// Controller describes the loop.
func Controller() controllers.Controller {
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	return controllers.Controller{
		Name:    "persistentvolumeclaim-protection-controller",
		Account: "pvc-protection-controller",
		Inputs:  []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("pods"), claims},
		Outputs: []schema.GroupVersionResource{claims},
		New:     build,
	}
}

type controller struct {
	client kubernetes.Interface
	clock  clock.PassiveClock
	pods   cache.Indexer
	claims listers.PersistentVolumeClaimLister
	queue  *controllers.Queue[types.NamespacedName]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	pods, claims := d.Informers.Core().V1().Pods(), d.Informers.Core().V1().PersistentVolumeClaims()
	c := &controller{
		client: d.Client, clock: d.Clock, pods: pods.Informer().GetIndexer(), claims: claims.Lister(),
		queue: controllers.NewQueue[types.NamespacedName](d, "pvcprotection", 1),
	}
	look := func(pod *corev1.Pod) {
		for i := range pod.Spec.Volumes {
			if name := workload.ClaimName(pod, &pod.Spec.Volumes[i]); name != "" {
				c.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: name})
			}
		}
	}
	err := errors.Join(
		workload.IndexByPersistentVolumeClaim(pods.Informer()),
		controllers.Subscribe(d, claims.Informer(), controllers.OnAny(func(claim *corev1.PersistentVolumeClaim) {
			if (claim.DeletionTimestamp == nil) != slices.Contains(claim.Finalizers, finalizer) || tracked(claim) && unused(claim) == nil {
				c.queue.Add(controllers.Key(claim))
			}
		})),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: look,
			Update: func(before, updated *corev1.Pod) {
				if before.UID != updated.UID || !over(before) && over(updated) || terminated(before) != terminated(updated) {
					look(before)
				}
				if before.UID != updated.UID {
					look(updated)
				}
			},
			Delete: look,
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// over reports whether no container of the pod runs or will run any more.
func over(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

func uses(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return pod.Spec.NodeName != "" && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return workload.ClaimName(pod, &v) == claim.Name && (v.PersistentVolumeClaim != nil || !over(pod) && metav1.IsControlledBy(claim, pod))
	})
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get claim: %w", err)
	}
	if tracked(claim) {
		if claim, err = c.track(ctx, claim); err != nil {
			return err
		}
	}
	at := slices.Index(claim.Finalizers, finalizer)
	next := claim.DeepCopy()
	switch {
	case claim.DeletionTimestamp == nil && at < 0:
		next.Finalizers = append(next.Finalizers, finalizer)
	case claim.DeletionTimestamp != nil && at >= 0:
		if used, err := c.used(ctx, claim); err != nil || used {
			return err
		}
		next.Finalizers = slices.Delete(next.Finalizers, at, at+1)
	default:
		return nil
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update claim: %w", err)
	}
	return nil
}

// used reports whether a pod uses the claim. It asks the server where the cache shows no user: a pod may just have been bound.
func (c *controller) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	cached, err := c.usersOf(claim)
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(cached, func(pod *corev1.Pod) bool { return uses(pod, claim) }) {
		return true, nil
	}
	live, err := c.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list live pods: %w", err)
	}
	return slices.ContainsFunc(live.Items, func(pod corev1.Pod) bool { return uses(&pod, claim) }), nil
}

// usersOf returns the pods in the cache that name the claim.
func (c *controller) usersOf(claim *corev1.PersistentVolumeClaim) ([]*corev1.Pod, error) {
	found, err := c.pods.ByIndex(workload.ByPersistentVolumeClaim, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return nil, fmt.Errorf("find pods: %w", err)
	}
	var pods []*corev1.Pod
	for _, obj := range found {
		if pod, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}
