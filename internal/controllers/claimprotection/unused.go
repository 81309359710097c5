// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package claimprotection

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// tracked reports whether the claim has the condition Unused: it is bound and not deleted.
func tracked(claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimBound
}

// unused returns the claim's condition Unused; nil if it has none.
func unused(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimCondition {
	for i := range claim.Status.Conditions {
		if claim.Status.Conditions[i].Type == corev1.PersistentVolumeClaimUnused {
			return &claim.Status.Conditions[i]
		}
	}
	return nil
}

// track writes the condition Unused of a claim, and returns the claim as it is then (KEP-5541). Pods count from when they exist, not from
// when they are bound to a node. An event of a pod that the cache does not show yet enqueues the claim.
func (c *controller) track(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	pods, err := c.usersOf(claim)
	if err != nil {
		return nil, err
	}
	next := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(c.clock.Now()),
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC", // upstream's words
	}
	if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return refers(pod, claim) }) {
		next.Status, next.Reason, next.Message = corev1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	}
	changed := claim.DeepCopy()
	switch at := unused(changed); {
	case at == nil:
		changed.Status.Conditions = append(changed.Status.Conditions, next)
	case at.Status == next.Status:
		return claim, nil
	default:
		*at = next
	}
	changed, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update claim status: %w", err)
	}
	return changed, nil
}

// refers reports whether a pod that still needs its volumes names the claim.
func refers(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return !terminated(pod) && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return workload.ClaimName(pod, &v) == claim.Name && (v.PersistentVolumeClaim != nil || metav1.IsControlledBy(claim, pod))
	})
}

// terminated reports whether a pod needs its volumes no longer: it has finished, or it is deleted and none of its containers runs.
func terminated(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	s := &pod.Status
	return pod.DeletionTimestamp != nil && !slices.ContainsFunc(
		slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses),
		func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil })
}
