// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localprovisioner

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// grows reports whether a bound claim asks for more than its status says that it has, and the node was not told yet.
func grows(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != corev1.ClaimBound || claim.Annotations[provisioner] != driver || claim.DeletionTimestamp != nil {
		return false
	}
	want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	told := claim.Status.AllocatedResources[corev1.ResourceStorage]
	return want.Cmp(have) > 0 && (want.Cmp(told) != 0 || claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage] == "")
}

// grow gives the volume the new size, and leaves the rest to the node: it calls the driver, and writes the claim's capacity.
func (c *controller) grow(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && !mine(pv) {
		return nil
	}
	if err != nil {
		return err
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if have := pv.Spec.Capacity[corev1.ResourceStorage]; have.Cmp(size) < 0 {
		changed := pv.DeepCopy()
		changed.Spec.Capacity[corev1.ResourceStorage] = size
		if _, err := c.client.CoreV1().PersistentVolumes().Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("expand volume %s: %w", pv.Name, err)
		}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": claim.ResourceVersion},
		"status": map[string]any{
			"allocatedResources":        corev1.ResourceList{corev1.ResourceStorage: size},
			"allocatedResourceStatuses": map[corev1.ResourceName]any{corev1.ResourceStorage: corev1.PersistentVolumeClaimNodeResizePending},
			"conditions": []map[string]any{{
				"type": corev1.PersistentVolumeClaimFileSystemResizePending, "status": corev1.ConditionTrue,
				"lastTransitionTime": metav1.NewTime(c.clock.Now()),
				"message":            "Waiting for user to (re-)start a pod to finish file system resize of volume on node.", // upstream's words
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(
		ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("expand claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
