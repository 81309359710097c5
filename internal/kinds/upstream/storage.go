// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/apis/storage/validation"
	storagemigration "k8s.io/kubernetes/pkg/apis/storagemigration/validation"
)

// StorageClass validates storage classes.
func StorageClass() Checks {
	return Checks{
		Create: created(validation.ValidateStorageClass),
		Update: updated(both(validation.ValidateStorageClass, validation.ValidateStorageClassUpdate)),
	}
}

// VolumeAttributesClass validates volume attributes classes.
func VolumeAttributesClass() Checks {
	return Checks{Create: created(validation.ValidateVolumeAttributesClass), Update: updated(validation.ValidateVolumeAttributesClassUpdate)}
}

// VolumeAttachment validates volume attachments.
func VolumeAttachment() Checks {
	return Checks{
		Create: created(validation.ValidateVolumeAttachment),
		Update: updated(validation.ValidateVolumeAttachmentUpdate),
		Status: updated(validation.ValidateVolumeAttachmentUpdate, "status"),
	}
}

// CSINode validates the record of a node's storage drivers.
func CSINode() Checks {
	return Checks{
		Create: created(validation.ValidateCSINode),
		Update: updated(validation.ValidateCSINodeUpdate),
		Status: updated(validation.ValidateCSINodeStatusUpdate, "status"),
	}
}

// CSIDriver validates the record of a storage driver.
func CSIDriver() Checks {
	return Checks{Create: created(validation.ValidateCSIDriver), Update: updated(validation.ValidateCSIDriverUpdate)}
}

// CSIStorageCapacity validates storage capacities.
func CSIStorageCapacity() Checks {
	return Checks{
		Create: created(func(c *storage.CSIStorageCapacity) field.ErrorList {
			return validation.ValidateCSIStorageCapacity(c, validation.CSIStorageCapacityValidateOptions{})
		}),
		Update: updated(func(c, old *storage.CSIStorageCapacity) field.ErrorList {
			errs := validation.ValidateCSIStorageCapacity(c, validation.CSIStorageCapacityValidateOptions{
				AllowInvalidLabelValueInSelector: len(metav1validation.ValidateLabelSelector(
					old.NodeTopology, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0,
			})
			return append(errs, validation.ValidateCSIStorageCapacityUpdate(c, old)...)
		}),
	}
}

// StorageVersionMigration validates storage version migrations.
func StorageVersionMigration() Checks {
	return Checks{
		Create: created(storagemigration.ValidateStorageVersionMigration),
		Update: updated(storagemigration.ValidateStorageVersionMigrationUpdate),
		Status: updated(storagemigration.ValidateStorageVersionMigrationStatusUpdate, "status"),
	}
}
