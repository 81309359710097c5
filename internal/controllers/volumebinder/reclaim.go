// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"context"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"
)

// reclaim releases a volume whose claim is deleted. The volume's external provisioner deletes it; a volume with the policy Retain stays;
// one with Recycle is available again when a pod has emptied it.
func (c *controller) reclaim(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
		var err error
		if pv, err = c.volumePhase(ctx, pv, corev1.VolumeReleased); err != nil {
			return err
		}
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle && pv.Annotations[volume.AnnMigratedTo] == "" {
		return c.recycle(ctx, pv)
	}
	return c.reclaimer.reclaim(ctx, pv)
}

// recycle empties a volume. One that cannot be emptied is tried again.
func (c *controller) recycle(ctx context.Context, pv *corev1.PersistentVolume) error {
	if used, err := c.recycler.used(pv); used || err != nil {
		return err
	}
	if !recyclable(pv) {
		return c.reclaimer.failed(ctx, pv, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
	}
	done, failure, err := c.recycler.recycle(ctx, pv)
	switch {
	case err != nil:
		return err
	case failure != "":
		c.queue.AddAfter(types.NamespacedName{Name: pv.Name}, recycleAgain)
		return c.reclaimer.failed(ctx, pv, "VolumeFailedRecycle", "Recycle failed: "+failure)
	case !done:
		return nil
	}
	c.recorder.Event(pv, corev1.EventTypeNormal, volumeRecycled, "Volume recycled")
	return c.unbind(ctx, pv)
}

// reclaimer does with released volumes what their policy says. All messages are upstream's.
type reclaimer struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	meters   *meters
	scratch  string // where the directories of deleted hostPath volumes must be
}

func (r *reclaimer) reclaim(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Annotations[volume.AnnMigratedTo] != "" {
		return nil
	}
	switch pv.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRetain:
		return nil
	case corev1.PersistentVolumeReclaimDelete:
		return r.remove(ctx, pv)
	}
	return r.failed(ctx, pv, "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}

const hostPathDriver = "kubernetes.io/host-path"

// remove deletes a released volume, unless an external provisioner does: that is so for every volume of a CSI driver.
func (r *reclaimer) remove(ctx context.Context, pv *corev1.PersistentVolume) error {
	switch by := pv.Annotations[volume.AnnDynamicallyProvisioned]; {
	case by != "" && !strings.HasPrefix(by, "kubernetes.io/"), by == "" && pv.Spec.CSI != nil:
		return nil
	case by != "" && by != hostPathDriver:
		return r.failed(ctx, pv, "VolumeFailedDelete", fmt.Sprintf("no volume plugin matched name: %s", by))
	case by != "" && pv.Spec.HostPath == nil:
		return r.failed(ctx, pv, "VolumeFailedDelete",
			fmt.Sprintf("failed to create deleter for volume %q: spec.PersistentVolumeSource.HostPath is nil", pv.Name))
	case pv.Spec.NFS != nil:
		return r.failed(ctx, pv, "VolumeFailedDelete", fmt.Sprintf("error getting deleter volume plugin for volume %q: "+
			"no deletable volume plugin matched", pv.Name))
	case pv.Spec.HostPath == nil:
		return r.failed(ctx, pv, "VolumeFailedDelete", fmt.Sprintf("error getting deleter volume plugin for volume %q: "+
			"no volume plugin matched", pv.Name))
	}
	err := removeBelow(r.scratch, pv.Spec.HostPath.Path)
	r.meters.removed(hostPathDriver, err)
	if err != nil {
		return r.failed(ctx, pv, "VolumeFailedDelete", err.Error())
	}
	if err := r.release(ctx, pv); err != nil {
		return err
	}
	err = r.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete volume: %w", err)
	}
	return nil
}

// scratch is the directory of the controller's machine below which it deletes the directories of hostPath volumes.
const scratch = "/tmp"

// removeBelow removes a directory, which must be below another one: no symbolic link leads it elsewhere.
func removeBelow(base, path string) error {
	rest, ok := strings.CutPrefix(path, base+"/")
	if !ok || rest == "" {
		return fmt.Errorf("host_path deleter only supports /tmp/.+ but received provided %s", path)
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	if err := root.RemoveAll(rest); err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	return nil
}

// release removes the finalizer that protects a volume until its storage is deleted.
func (r *reclaimer) release(ctx context.Context, pv *corev1.PersistentVolume) error {
	changed := pv.DeepCopy()
	changed.Finalizers = without(changed.Finalizers, volume.PVDeletionInTreeProtectionFinalizer)
	if len(changed.Finalizers) == len(pv.Finalizers) {
		return nil
	}
	if _, err := r.client.CoreV1().PersistentVolumes().Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update finalizers: %w", err)
	}
	return nil
}

func (r *reclaimer) failed(ctx context.Context, pv *corev1.PersistentVolume, reason, message string) error {
	if pv.Status.Phase == corev1.VolumeFailed {
		return nil
	}
	failed := pv.DeepCopy()
	failed.Status.Phase, failed.Status.Message = corev1.VolumeFailed, message
	if _, err := r.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, failed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update volume status: %w", err)
	}
	r.recorder.Event(pv, corev1.EventTypeWarning, reason, message)
	return nil
}
