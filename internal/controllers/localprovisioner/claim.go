// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localprovisioner

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// wanted reports whether a claim waits for a volume of the driver.
func wanted(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && claim.Annotations[provisioner] == driver
}

// volumeName returns the name of a claim's volume: that of external-provisioner.
func volumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// syncClaim creates the volume of a claim.
func (c *controller) syncClaim(ctx context.Context, i item) error {
	claim, err := c.claims.PersistentVolumeClaims(i.namespace).Get(i.claim)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if grows(claim) {
		return c.grow(ctx, claim)
	}
	if !wanted(claim) {
		return nil
	}
	if _, err := c.volumes.Get(volumeName(claim)); err == nil || !apierrors.IsNotFound(err) {
		return err // the binder binds it
	}
	if claim.Spec.StorageClassName == nil {
		return nil
	}
	class, err := c.classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != driver {
		return nil // the binder records an event
	}
	if why := refused(claim); why != "" {
		c.recorder.Eventf(claim, corev1.EventTypeWarning, reasonFailed, "failed to provision volume with StorageClass %q: %s", class.Name, why)
		return nil // until the claim changes, which it cannot
	}
	node, err := c.choose(claim, class)
	if err != nil || node == "" {
		return err
	}
	if found, err := c.nodes.Get(node); err != nil && !apierrors.IsNotFound(err) {
		return err
	} else if err != nil || found.Labels[topologyKey] == "" {
		return c.reschedule(ctx, claim, class, node)
	}
	pv := persistentVolume(claim, class, node)
	if _, err := c.client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create volume of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reasonSuccessful, "Successfully provisioned volume %s", pv.Name)
	return nil
}

// refused returns why a claim has no volume of the driver; empty: it can have one.
func refused(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return "volumes of " + driver + " are directories, not block devices"
	}
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return "volumes with a data source need external-provisioner beside the driver"
	}
	for _, mode := range claim.Spec.AccessModes {
		if mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany {
			return fmt.Sprintf("volumes of %s are on one node: %s is not supported", driver, mode)
		}
	}
	return ""
}

// choose returns the node of a claim's volume; empty: it is not known yet.
func (c *controller) choose(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (string, error) {
	if node := claim.Annotations[selectedNode]; node != "" {
		return node, nil
	}
	if class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		return "", nil
	}
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return "", err
	}
	var names []string
	for _, n := range nodes {
		if n.Labels[topologyKey] != "" && !n.Spec.Unschedulable {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return slices.Min(names), nil
}

// reschedule has the scheduler choose another node.
func (c *controller) reschedule(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string,
) error {
	c.recorder.Eventf(claim, corev1.EventTypeWarning, reasonFailed,
		"failed to provision volume with StorageClass %q: node %s does not run the driver %s", class.Name, node, driver)
	if claim.Annotations[selectedNode] == "" {
		return nil
	}
	changed := claim.DeepCopy()
	delete(changed.Annotations, selectedNode)
	_, err := c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	return err
}

// persistentVolume makes the volume of a claim on a node.
func persistentVolume(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) *corev1.PersistentVolume {
	name := volumeName(claim)
	size, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		size = resource.MustParse("1Gi")
	}
	policy, mode := corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeFilesystem
	if class.ReclaimPolicy != nil {
		policy = *class.ReclaimPolicy
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: driver}, Finalizers: []string{finalizer}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: size}, AccessModes: claim.Spec.AccessModes, VolumeMode: &mode,
			PersistentVolumeReclaimPolicy: policy, StorageClassName: class.Name, MountOptions: class.MountOptions,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
				ResourceVersion: claim.ResourceVersion,
			},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: driver, VolumeHandle: strings.ToLower(name),
				VolumeAttributes: map[string]string{lazy: "true", sizeKey: strconv.FormatInt(size.Value(), 10)},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: topologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}
