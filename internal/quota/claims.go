// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/storage/volume"
)

// ofClass comes between a storage class and what is limited of it.
const ofClass = ".storageclass.storage.k8s.io/"

func isVolumeClaimName(name corev1.ResourceName) bool {
	return name == CountName(volumeClaims) || name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage ||
		strings.HasSuffix(string(name), ofClass+string(corev1.ResourcePersistentVolumeClaims)) ||
		strings.HasSuffix(string(name), ofClass+string(corev1.ResourceRequestsStorage))
}

// volumeClaimEvaluator counts claims of volumes and the storage they ask for, in all and by storage class.
type volumeClaimEvaluator struct{}

func (volumeClaimEvaluator) Charges(w Write) bool {
	switch w.Subresource {
	case "":
		return true
	case "status":
		claim, ok := w.Object.(*corev1.PersistentVolumeClaim)
		old, had := w.Old.(*corev1.PersistentVolumeClaim)
		return ok && had && VolumeClaimReleases(old, claim)
	}
	return false
}

func (volumeClaimEvaluator) Names(_ context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	var out []corev1.ResourceName
	for _, name := range of {
		if isVolumeClaimName(name) {
			out = append(out, name)
		}
	}
	return out, nil
}

func (volumeClaimEvaluator) Requires([]corev1.ResourceName, runtime.Object) error { return nil }

func (volumeClaimEvaluator) Scoped() bool { return true }

// InScope knows the one scope of claims: the classes of attributes that one has, had, or is about to have.
func (volumeClaimEvaluator) InScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return false, fmt.Errorf("measure claim: it is a %T", obj)
	}
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	return selects(s, sets.List(attributesClasses(claim))...)
}

func attributesClasses(claim *corev1.PersistentVolumeClaim) sets.Set[string] {
	names := sets.New[string]()
	for _, name := range []*string{claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName} {
		if name != nil && *name != "" {
			names.Insert(*name)
		}
	}
	if m := claim.Status.ModifyVolumeStatus; m != nil && m.TargetVolumeAttributesClassName != "" {
		names.Insert(m.TargetVolumeAttributesClassName)
	}
	return names
}

func (volumeClaimEvaluator) Usage(_ context.Context, obj runtime.Object) (corev1.ResourceList, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return nil, fmt.Errorf("measure claim: it is a %T", obj)
	}
	used := corev1.ResourceList{corev1.ResourcePersistentVolumeClaims: *decimal(1), CountName(volumeClaims): *decimal(1)}
	class := volume.GetPersistentVolumeClaimClass(claim)
	if class != "" {
		used[corev1.ResourceName(class+ofClass)+corev1.ResourcePersistentVolumeClaims] = *decimal(1)
	}
	if asked, ok := storage(claim); ok {
		used[corev1.ResourceRequestsStorage] = asked
		if class != "" {
			used[corev1.ResourceName(class+ofClass)+corev1.ResourceRequestsStorage] = asked
		}
	}
	return used, nil
}

// storage is what a claim asks for, or what it has been given while that is more: a growth that failed is paid for until it
// is taken back. It is whole bytes.
func storage(claim *corev1.PersistentVolumeClaim) (resource.Quantity, bool) {
	asked, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return asked, false
	}
	asked = whole(asked)
	if given, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && given.Cmp(asked) > 0 {
		return whole(given), true
	}
	return asked, true
}

func whole(q resource.Quantity) resource.Quantity {
	rounded := q.DeepCopy()
	if !rounded.RoundUp(0) {
		return rounded
	}
	return q
}

// VolumeClaimReleases reports whether an update of a claim may have released usage that only the controller recalculates.
func VolumeClaimReleases(before, updated *corev1.PersistentVolumeClaim) bool {
	had, _ := storage(before)
	has, _ := storage(updated)
	return had.Cmp(has) != 0 || !attributesClasses(before).Equal(attributesClasses(updated))
}
