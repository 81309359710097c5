// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/kubernetes/pkg/apis/coordination/validation"
	discovery "k8s.io/kubernetes/pkg/apis/discovery/validation"
	scheduling "k8s.io/kubernetes/pkg/apis/scheduling/validation"
)

// Lease validates leases.
func Lease() Checks {
	return Checks{Create: created(validation.ValidateLease), Update: updated(validation.ValidateLeaseUpdate)}
}

// EndpointSlice validates endpoint slices.
func EndpointSlice() Checks {
	return Checks{Create: created(discovery.ValidateEndpointSliceCreate), Update: updated(discovery.ValidateEndpointSliceUpdate)}
}

// PriorityClass validates priority classes.
func PriorityClass() Checks {
	return Checks{Create: created(scheduling.ValidatePriorityClass), Update: updated(scheduling.ValidatePriorityClassUpdate)}
}
