// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// PersistentVolume validates persistent volumes.
func PersistentVolume() Checks {
	create := func(pv *core.PersistentVolume, old *core.PersistentVolume) field.ErrorList {
		errs := validation.ValidatePersistentVolume(pv, validation.ValidationOptionsForPersistentVolume(pv, old))
		return append(errs, mountOptions(pv)...)
	}
	return Checks{
		Create: created(func(pv *core.PersistentVolume) field.ErrorList { return create(pv, nil) }),
		Update: updated(func(pv, old *core.PersistentVolume) field.ErrorList {
			o := validation.ValidationOptionsForPersistentVolume(pv, old)
			return append(create(pv, old), validation.ValidatePersistentVolumeUpdate(pv, old, o)...)
		}),
		Status: updated(validation.ValidatePersistentVolumeStatusUpdate, "status"),
	}
}

// mountOptions refuses the annotation for mount options on volumes whose type does not support them.
func mountOptions(pv *core.PersistentVolume) field.ErrorList {
	s := &pv.Spec.PersistentVolumeSource
	if s.GCEPersistentDisk != nil || s.AWSElasticBlockStore != nil || s.Glusterfs != nil || s.NFS != nil || s.RBD != nil ||
		s.Quobyte != nil || s.ISCSI != nil || s.Cinder != nil || s.CephFS != nil || s.AzureFile != nil ||
		s.VsphereVolume != nil || s.AzureDisk != nil || s.PhotonPersistentDisk != nil {
		return nil
	}
	if _, ok := pv.Annotations[core.MountOptionAnnotation]; !ok {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata").Child("annotations", core.MountOptionAnnotation),
		"may not specify mount options for this volume type")}
}

// PersistentVolumeClaim validates persistent volume claims.
func PersistentVolumeClaim() Checks {
	return Checks{
		Create: created(func(c *core.PersistentVolumeClaim) field.ErrorList {
			return validation.ValidatePersistentVolumeClaim(c, validation.ValidationOptionsForPersistentVolumeClaim(c, nil))
		}),
		Update: updated(func(c, old *core.PersistentVolumeClaim) field.ErrorList {
			return validation.ValidatePersistentVolumeClaimUpdate(c, old, validation.ValidationOptionsForPersistentVolumeClaim(c, old))
		}),
		Status: updated(func(c, old *core.PersistentVolumeClaim) field.ErrorList {
			return validation.ValidatePersistentVolumeClaimStatusUpdate(c, old, validation.ValidationOptionsForPersistentVolumeClaim(c, old))
		}, "status"),
	}
}
