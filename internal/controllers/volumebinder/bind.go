// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
)

// preResize is the annotation with a volume's capacity before its expansion began.
const preResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// bind binds a volume and a claim to each other, as far as they are not bound yet.
func (c *controller) bind(ctx context.Context, pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	update, dirty, err := volume.GetBindVolumeToClaim(pv, claim)
	if err != nil {
		return err
	}
	if dirty {
		if pv, err = c.client.CoreV1().PersistentVolumes().Update(ctx, update, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update volume: %w", err)
		}
	}
	if pv, err = c.volumePhase(ctx, pv, corev1.VolumeBound); err != nil {
		return err
	}
	_, completed := claim.Annotations[volume.AnnBindCompleted]
	if claim.Spec.VolumeName != pv.Name || !completed {
		update := claim.DeepCopy()
		if claim.Spec.VolumeName != pv.Name {
			update.Spec.VolumeName = pv.Name
			if _, ok := claim.Annotations[volume.AnnBoundByController]; !ok {
				metav1.SetMetaDataAnnotation(&update.ObjectMeta, volume.AnnBoundByController, "yes")
			}
		}
		metav1.SetMetaDataAnnotation(&update.ObjectMeta, volume.AnnBindCompleted, "yes")
		if claim, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, update, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update claim: %w", err)
		}
	}
	return c.claimPhase(ctx, claim, corev1.ClaimBound, pv)
}

// updateClaim updates a claim, not its status.
func (c *controller) updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaim)) error {
	update := claim.DeepCopy()
	change(update)
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, update, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update claim: %w", err)
	}
	return nil
}

// claimPhase sets a claim's phase and its status fields from the volume: the access modes and, when it becomes bound, capacity and
// attributes class. Other controllers change these later. Without a volume, it clears them.
func (c *controller) claimPhase(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase,
	pv *corev1.PersistentVolume) error {
	update := claim.DeepCopy()
	s := &update.Status
	was := s.Phase
	s.Phase = phase
	switch {
	case pv == nil:
		s.AccessModes, s.Capacity, s.CurrentVolumeAttributesClassName = nil, nil, nil
	default:
		s.AccessModes = slices.Clone(pv.Spec.AccessModes)
		if was == phase {
			break
		}
		size, ok := pv.Spec.Capacity[corev1.ResourceStorage]
		if !ok {
			return fmt.Errorf("PersistentVolume %q is without a storage capacity", pv.Name) // upstream's words
		}
		if before, err := resource.ParseQuantity(pv.Annotations[preResize]); err == nil {
			size = before
		}
		s.Capacity = pv.Spec.Capacity.DeepCopy()
		s.Capacity[corev1.ResourceStorage] = size
		if was == corev1.ClaimPending {
			s.CurrentVolumeAttributesClassName = pv.Spec.VolumeAttributesClassName
		}
	}
	if equality.Semantic.DeepEqual(claim.Status, *s) {
		return nil
	}
	if _, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update claim status: %w", err)
	}
	return nil
}
