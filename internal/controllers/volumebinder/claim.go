// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// openClaim handles a claim that accepts any volume. All messages are upstream's.
func (c *controller) openClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	waits, err := volume.IsDelayBindingMode(claim, c.classes)
	if err != nil {
		return err
	}
	pv, err := c.match(claim, waits)
	if err != nil {
		return fmt.Errorf("error finding PV for claim %q: %w", claim.Namespace+"/"+claim.Name, err)
	}
	if pv != nil {
		return c.bind(ctx, pv, claim)
	}
	if !volume.PersistentVolumeClaimHasClass(claim) {
		if class, err := c.defaultClass(); err != nil {
			return err
		} else if class != nil { // a class has become the default since (KEP-3333)
			err := c.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) { claim.Spec.StorageClassName = &class.Name })
			c.meters.classAssigned(err)
			return err
		}
	}
	switch {
	case waits && !volume.IsDelayBindingProvisioning(claim):
		reason, message, err := c.consumers(claim)
		if err != nil {
			return err
		}
		c.tell(claim, corev1.EventTypeNormal, reason, message)
	case volume.GetPersistentVolumeClaimClass(claim) != "":
		return c.provision(ctx, claim)
	default:
		c.tell(claim, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	}
	return c.claimPhase(ctx, claim, corev1.ClaimPending, nil)
}

// consumers returns what a claim waits for whose volume the scheduler chooses: for pods to be created, or to be scheduled.
func (c *controller) consumers(claim *corev1.PersistentVolumeClaim) (reason, message string, err error) {
	found, err := c.pods.ByIndex(workload.ByPersistentVolumeClaim, claim.Namespace+"/"+claim.Name)
	if err != nil {
		return "", "", fmt.Errorf("find pods: %w", err)
	}
	var pods []string
	for _, obj := range found {
		if pod, ok := obj.(*corev1.Pod); ok && waiting(pod) {
			pods = append(pods, pod.Name)
		}
	}
	slices.Sort(pods)
	switch len(pods) {
	case 0:
		return "WaitForFirstConsumer", "waiting for first consumer to be created before binding", nil
	case 1:
		return "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", pods[0]), nil
	}
	return "WaitForPodScheduled", fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(pods, ",")), nil
}

// waiting reports whether a pod has no node yet, and is not over.
func waiting(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed &&
		pod.Status.Phase != corev1.PodSucceeded
}

// tell records an event for a claim unless it repeats the claim's last one.
func (c *controller) tell(claim *corev1.PersistentVolumeClaim, kind, reason, message string) {
	if what := string(claim.UID) + reason + message; c.told[controllers.Key(claim)] != what {
		c.told[controllers.Key(claim)] = what
		c.recorder.Event(claim, kind, reason, message)
	}
}

// match finds a volume for a claim: of those with the fewest access modes beyond the requested ones, one that names the claim, whatever its
// class, or the smallest.
func (c *controller) match(claim *corev1.PersistentVolumeClaim, waits bool) (*corev1.PersistentVolume, error) {
	found, err := c.free.ByIndex(byClass, ofClass(volume.GetPersistentVolumeClaimClass(claim)))
	if err != nil {
		return nil, err
	}
	naming, err := c.free.ByIndex(byClass, ofClaim(claim.Namespace, claim.Name))
	if err != nil {
		return nil, err
	}
	groups, seen := map[string][]*corev1.PersistentVolume{}, map[string]bool{}
	for _, f := range append(naming, found...) {
		if pv, ok := f.(*corev1.PersistentVolume); ok && !seen[pv.Name] && volume.CheckAccessModes(claim, pv) {
			seen[pv.Name] = true
			modes := modes(pv)
			groups[modes] = append(groups[modes], pv)
		}
	}
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Count(a, ","), strings.Count(b, ",")), strings.Compare(a, b))
	})
	for _, k := range keys {
		slices.SortFunc(groups[k], func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
		pv, err := volume.FindMatchingVolume(claim, groups[k], nil, nil, waits, true)
		if err != nil || pv != nil {
			return pv, err
		}
	}
	return nil, nil
}

func modes(pv *corev1.PersistentVolume) string {
	names := make([]string, len(pv.Spec.AccessModes))
	for i, m := range pv.Spec.AccessModes {
		names[i] = string(m)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ",")
}

func isDefault(class *storagev1.StorageClass) bool {
	return class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// defaultClass returns the youngest of the classes marked as default; nil if there is none.
func (c *controller) defaultClass() (*storagev1.StorageClass, error) {
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list classes: %w", err)
	}
	all = slices.DeleteFunc(all, func(s *storagev1.StorageClass) bool { return !isDefault(s) })
	if len(all) == 0 {
		return nil, nil
	}
	return slices.MinFunc(all, func(a, b *storagev1.StorageClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	}), nil
}

// provision annotates the claim for the class's external provisioner. There are no other provisioners.
func (c *controller) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	class, err := c.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	provisioner := ""
	if err == nil {
		provisioner = class.Provisioner
		if driver := csiDriver(provisioner); driver != "" {
			provisioner = driver
		} else if strings.HasPrefix(provisioner, "kubernetes.io/") {
			err = fmt.Errorf("no volume plugin matched name: %s", provisioner)
		}
	}
	if err != nil {
		c.tell(claim, corev1.EventTypeWarning, "ProvisioningFailed", err.Error())
		return nil // an event of the class enqueues the claim
	}
	if claim.Annotations[volume.AnnStorageProvisioner] != provisioner {
		if err := c.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnBetaStorageProvisioner, provisioner)
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnStorageProvisioner, provisioner)
		}); err != nil {
			return err
		}
	}
	c.tell(claim, corev1.EventTypeNormal, "ExternalProvisioning",
		fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
			"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", provisioner))
	return nil
}

// namingClaim handles a claim that names its volume and is not bound to it yet.
func (c *controller) namingClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return c.claimPhase(ctx, claim, corev1.ClaimPending, nil)
	case err != nil:
		return fmt.Errorf("get volume: %w", err)
	case pv.Spec.ClaimRef == nil:
		if err := satisfies(pv, claim); err != nil {
			c.tell(claim, corev1.EventTypeWarning, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", pv.Name, err))
			return c.claimPhase(ctx, claim, corev1.ClaimPending, nil)
		}
		return c.bind(ctx, pv, claim)
	case volume.IsVolumeBoundToClaim(pv, claim):
		return c.bind(ctx, pv, claim)
	}
	c.tell(claim, corev1.EventTypeWarning, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", pv.Name))
	if _, ours := claim.Annotations[volume.AnnBoundByController]; ours {
		// A client removed the annotation of a completed binding.
		return fmt.Errorf("invalid binding of claim %q to volume %q: volume already claimed by %q", claim.Namespace+"/"+claim.Name, pv.Name,
			pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
	}
	return c.claimPhase(ctx, claim, corev1.ClaimPending, nil)
}

// satisfies returns an error if a volume does not satisfy the claim.
func satisfies(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], pv.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case pv.DeletionTimestamp != nil:
		return fmt.Errorf("the volume is marked for deletion %q", pv.Name)
	case has.Value() < asked.Value():
		return errors.New("requested PV is too small")
	case volume.GetPersistentVolumeClass(pv) != volume.GetPersistentVolumeClaimClass(claim):
		return errors.New("storageClassName does not match")
	case ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != ptr.Deref(claim.Spec.VolumeAttributesClassName, ""):
		return errors.New("volumeAttributesClassName does not match")
	case volume.CheckVolumeModeMismatches(&claim.Spec, &pv.Spec):
		return errors.New("incompatible volumeMode")
	case !volume.CheckAccessModes(claim, pv):
		return errors.New("incompatible accessMode")
	}
	return nil
}

// boundClaim handles a bound claim: it stays bound, or is lost.
func (c *controller) boundClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName == "" {
		return c.lost(ctx, claim, "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	}
	pv, err := c.volumes.Get(claim.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return c.lost(ctx, claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case err != nil:
		return fmt.Errorf("get volume: %w", err)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == claim.UID:
		return c.bind(ctx, pv, claim)
	}
	return c.lost(ctx, claim, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

func (c *controller) lost(ctx context.Context, claim *corev1.PersistentVolumeClaim, reason, message string) error {
	if claim.Status.Phase == corev1.ClaimLost {
		return nil
	}
	if err := c.claimPhase(ctx, claim, corev1.ClaimLost, nil); err != nil {
		return err
	}
	c.recorder.Event(claim, corev1.EventTypeWarning, reason, message)
	return nil
}
