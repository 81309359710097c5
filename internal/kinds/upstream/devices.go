// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

// DeviceClass validates device classes.
func DeviceClass() Checks {
	return Checks{Create: created(validation.ValidateDeviceClass), Update: updated(validation.ValidateDeviceClassUpdate)}
}

// DeviceTaintRule validates device taint rules.
func DeviceTaintRule() Checks {
	return Checks{
		Create: created(validation.ValidateDeviceTaintRule),
		Update: updated(validation.ValidateDeviceTaintRuleUpdate),
		Status: updated(validation.ValidateDeviceTaintRuleStatusUpdate, "status"),
	}
}

// ResourceClaim validates resource claims.
func ResourceClaim() Checks {
	d := declared{rules: validation.ResourceNormalizationRules}
	return Checks{
		Create: created(validation.ValidateResourceClaim, d),
		Update: updatedBy(validation.ValidateResourceClaimUpdate, d),
		Status: updatedBy(validation.ValidateResourceClaimStatusUpdate, d, "status"),
	}
}

// ResourceClaimTemplate validates templates of resource claims.
func ResourceClaimTemplate() Checks {
	d := declared{rules: validation.ResourceNormalizationRules}
	return Checks{
		Create: created(validation.ValidateResourceClaimTemplate, d),
		Update: updatedBy(both(validation.ValidateResourceClaimTemplate, validation.ValidateResourceClaimTemplateUpdate), d),
	}
}

// ResourceSlice validates resource slices.
func ResourceSlice() Checks {
	d := options(map[string]bool{"DRAPartitionableDevicesType": Gate("DRAPartitionableDevicesType")})
	d.rules = validation.ResourceNormalizationRules
	return Checks{
		Create: created(validation.ValidateResourceSlice, d),
		Update: updatedBy(validation.ValidateResourceSliceUpdate, d),
	}
}
