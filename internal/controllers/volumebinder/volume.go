// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// volume handles a volume: it is available, bound to its claim, or released.
func (c *controller) volume(ctx context.Context, pv *corev1.PersistentVolume) error {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		_, err := c.volumePhase(ctx, pv, corev1.VolumeAvailable)
		return err
	}
	claim, err := c.claimOf(ctx, ref)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return c.reclaim(ctx, pv)
	case claim.Spec.VolumeName == "":
		if volume.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec) {
			c.recorder.Event(pv, corev1.EventTypeWarning, "VolumeMismatch",
				fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", claim.Name))
			c.recorder.Event(claim, corev1.EventTypeWarning, "VolumeMismatch",
				fmt.Sprintf("Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.", pv.Name))
			return nil
		}
		c.queue.Add(controllers.Key(claim)) // the sync of the claim continues
		return nil
	case claim.Spec.VolumeName == pv.Name:
		_, err := c.volumePhase(ctx, pv, corev1.VolumeBound)
		return err
	}
	// The claim is bound to another volume.
	if _, made := pv.Annotations[volume.AnnDynamicallyProvisioned]; made &&
		pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return c.reclaim(ctx, pv)
	}
	return c.unbind(ctx, pv)
}

// claimOf returns the claim of a volume; nil if it does not exist any more. It asks the server where the cache may not show the claim yet.
func (c *controller) claimOf(ctx context.Context, ref *corev1.ObjectReference) (*corev1.PersistentVolumeClaim, error) {
	claim, err := c.claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.UID != ref.UID {
		claim, err = c.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get claim: %w", err)
	case claim.UID != ref.UID:
		return nil, nil // another claim of the same name
	}
	return claim, nil
}

// unbind unbinds a volume from a claim that is bound to another volume. A claimRef that a user set before stays.
func (c *controller) unbind(ctx context.Context, pv *corev1.PersistentVolume) error {
	update := pv.DeepCopy()
	if _, ours := pv.Annotations[volume.AnnBoundByController]; ours {
		update.Spec.ClaimRef = nil
		delete(update.Annotations, volume.AnnBoundByController)
	} else {
		update.Spec.ClaimRef.UID = ""
	}
	updated, err := c.client.CoreV1().PersistentVolumes().Update(ctx, update, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update volume: %w", err)
	}
	_, err = c.volumePhase(ctx, updated, corev1.VolumeAvailable)
	return err
}

// volumePhase sets a volume's phase, and returns the updated volume.
func (c *controller) volumePhase(ctx context.Context, pv *corev1.PersistentVolume,
	phase corev1.PersistentVolumePhase) (*corev1.PersistentVolume, error) {
	if pv.Status.Phase == phase {
		return pv, nil
	}
	update := pv.DeepCopy()
	update.Status.Phase, update.Status.Message = phase, ""
	updated, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, update, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update volume status: %w", err)
	}
	return updated, nil
}
