// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// done reports whether no container of a pod runs or will run any more.
func done(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.DeletionTimestamp != nil &&
		pod.Spec.NodeName == ""
}

func reservedFor(claim *resourcev1.ResourceClaim, pod *corev1.Pod) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
}

func isPod(r resourcev1.ResourceClaimConsumerReference) bool {
	return r.APIGroup == "" && r.Resource == "pods"
}

// released is a claim after some of its users are removed.
type released struct {
	users      []resourcev1.ResourceClaimConsumerReference
	status     bool // the status changes: the users, or with the last of them the allocation
	deallocate bool
	unlock     bool // the finalizer is removed
}

// release decides about a claim whose former users are known. It deallocates when the last user leaves, not merely because there is none: a
// driver may allocate ahead. It deallocates a deleted claim in any case.
func release(claim *resourcev1.ResourceClaim, left func(resourcev1.ResourceClaimConsumerReference) bool) released {
	r := released{users: slices.DeleteFunc(slices.Clone(claim.Status.ReservedFor), left)}
	ours := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(r.users) < len(claim.Status.ReservedFor)
	last := len(r.users) == 0 && (fewer || claim.DeletionTimestamp != nil)
	r.deallocate = last && ours && claim.Status.Allocation != nil
	r.status = fewer || r.deallocate
	gone := claim.Status.Allocation == nil || r.deallocate
	r.unlock = ours && gone && (fewer || last)
	return r
}

func (c *controller) syncClaim(ctx context.Context, at types.NamespacedName) error {
	claim, err := c.claims.ResourceClaims(at.Namespace).Get(at.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get claim: %w", err)
	}
	gone := map[types.UID]bool{}
	for _, user := range claim.Status.ReservedFor {
		if isPod(user) {
			if gone[user.UID], err = c.left(ctx, at.Namespace, user); err != nil {
				return err
			}
		}
	}
	r := release(claim, func(user resourcev1.ResourceClaimConsumerReference) bool { return isPod(user) && gone[user.UID] })
	if claim, err = c.write(ctx, claim, r); err != nil {
		return err
	}
	if len(r.users) > 0 {
		return nil
	}
	return c.dispose(ctx, claim)
}

// left reports whether a user of a claim is a pod that no longer needs it. It asks the server about pods that the cache does not know: the
// scheduler may just have added them.
func (c *controller) left(ctx context.Context, namespace string, user resourcev1.ResourceClaimConsumerReference) (bool, error) {
	pod, err := c.pods.Pods(namespace).Get(user.Name)
	switch {
	case apierrors.IsNotFound(err):
		pod, err = c.client.CoreV1().Pods(namespace).Get(ctx, user.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		} else if err != nil {
			return false, fmt.Errorf("get pod: %w", err)
		}
		return pod.UID != user.UID, nil
	case err != nil:
		return false, fmt.Errorf("get cached pod: %w", err)
	}
	return pod.UID != user.UID || done(pod), nil
}

// write updates the claim by the decision. Both writes fail on a conflict.
func (c *controller) write(ctx context.Context, claim *resourcev1.ResourceClaim, r released) (_ *resourcev1.ResourceClaim, err error) {
	api := c.client.ResourceV1().ResourceClaims(claim.Namespace)
	if r.status {
		next := claim.DeepCopy()
		next.Status.ReservedFor = r.users
		if r.deallocate {
			next.Status.Allocation = nil
		}
		if claim, err = api.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("release claim: %w", err)
		}
	}
	if at := slices.Index(claim.Finalizers, resourcev1.Finalizer); r.unlock && at >= 0 {
		next := claim.DeepCopy()
		next.Finalizers = slices.Delete(next.Finalizers, at, at+1)
		if claim, err = api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("take the finalizer off: %w", err)
		}
	}
	return claim, nil
}

// dispose deletes an unused claim that was created for a pod which will not run. If the pod is gone, the garbage collector does that.
func (c *controller) dispose(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.APIVersion != "v1" || owner.Kind != "Pod" {
		return nil
	}
	pod, err := c.pods.Pods(claim.Namespace).Get(owner.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get owner: %w", err)
	}
	if pod.UID == owner.UID && !done(pod) || claim.DeletionTimestamp != nil {
		return nil
	}
	err = c.client.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name,
		metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete unused generated claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
