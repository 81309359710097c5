// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	apiserverinternal "k8s.io/kubernetes/pkg/apis/apiserverinternal/validation"
	coordination "k8s.io/kubernetes/pkg/apis/coordination/validation"
	resources "k8s.io/kubernetes/pkg/apis/resource/validation"
)

// LeaseCandidate validates candidates for leases.
func LeaseCandidate() Checks {
	return Checks{Create: created(coordination.ValidateLeaseCandidate), Update: updated(coordination.ValidateLeaseCandidateUpdate)}
}

// StorageVersion validates the objects in which API servers report their storage versions.
func StorageVersion() Checks {
	return Checks{
		Create: created(apiserverinternal.ValidateStorageVersion),
		Update: updated(apiserverinternal.ValidateStorageVersionUpdate),
		Status: updated(apiserverinternal.ValidateStorageVersionStatusUpdate, "status"),
	}
}

// ResourcePoolStatusRequest validates requests for the free devices of a pool.
func ResourcePoolStatusRequest() Checks {
	d := options(map[string]bool{"DRAPartitionableDevicesType": Gate("DRAPartitionableDevicesType")})
	return Checks{
		Create: created(resources.ValidateResourcePoolStatusRequest, d),
		Update: updatedBy(resources.ValidateResourcePoolStatusRequestUpdate, d),
		Status: updatedBy(resources.ValidateResourcePoolStatusRequestStatusUpdate, d, "status"),
	}
}
