// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
	translation "k8s.io/csi-translation-lib"
)

// csiDriver returns the CSI driver that replaced an in-tree driver; empty if the name is not of one. All in-tree drivers that are left are
// replaced.
func csiDriver(name string) string {
	t := translation.New()
	if !t.IsMigratableIntreePluginByName(name) {
		return ""
	}
	driver, err := t.GetCSINameFromInTreeName(name)
	if err != nil {
		return ""
	}
	return driver
}

// markMigrated sets the annotation with the CSI driver that replaced the driver of provisioner, or removes it. It reports whether the
// annotations changed.
func markMigrated(annotations map[string]string, provisioner string) bool {
	driver, was := csiDriver(provisioner), annotations[volume.AnnMigratedTo]
	switch {
	case driver == was:
		return false
	case driver == "":
		delete(annotations, volume.AnnMigratedTo)
	default:
		annotations[volume.AnnMigratedTo] = driver
	}
	return true
}

// migrator writes the annotations and finalizers of volumes and claims of former in-tree drivers.
type migrator struct{ client kubernetes.Interface }

// claim writes the annotation of a claim that names the CSI driver in the place of an in-tree driver, and returns the claim as it is
// then.
func (m migrator) claim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	provisioner, ok := claim.Annotations[volume.AnnStorageProvisioner]
	if !ok {
		provisioner, ok = claim.Annotations[volume.AnnBetaStorageProvisioner]
	}
	annotations := maps.Clone(claim.Annotations)
	if !ok || !markMigrated(annotations, provisioner) {
		return claim, nil
	}
	changed := claim.DeepCopy()
	changed.Annotations = annotations
	changed, err := m.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update claim annotations: %w", err)
	}
	return changed, nil
}

// volume is claim for a volume, with the finalizers that protect a volume until its storage is deleted: the controller sets and removes the
// one for in-tree drivers.
func (m migrator) volume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	provisioner, ok := pv.Annotations[volume.AnnDynamicallyProvisioned]
	if !ok {
		return pv, nil
	}
	annotations := maps.Clone(pv.Annotations)
	marked := markMigrated(annotations, provisioner)
	finalizers := deletionFinalizers(pv, provisioner)
	if !marked && slices.Equal(finalizers, pv.Finalizers) {
		return pv, nil
	}
	changed := pv.DeepCopy()
	changed.Annotations, changed.Finalizers = annotations, finalizers
	changed, err := m.client.CoreV1().PersistentVolumes().Update(ctx, changed, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update volume annotations: %w", err)
	}
	return changed, nil
}

// deletionFinalizers returns the finalizers that a provisioned volume should have.
func deletionFinalizers(pv *corev1.PersistentVolume, provisioner string) []string {
	const inTree, external = volume.PVDeletionInTreeProtectionFinalizer, volume.PVDeletionProtectionFinalizer
	switch {
	case csiDriver(provisioner) != "":
		return without(pv.Finalizers, inTree)
	case !strings.HasPrefix(provisioner, "kubernetes.io/"):
		return pv.Finalizers
	}
	finalizers := without(pv.Finalizers, external)
	if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return without(finalizers, inTree)
	}
	if !slices.Contains(finalizers, inTree) && pv.DeletionTimestamp == nil {
		finalizers = append(finalizers, inTree)
	}
	return finalizers
}

// without returns a copy of names that lacks one name.
func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
}
