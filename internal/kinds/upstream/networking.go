// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/networking/validation"
)

// Ingress validates ingresses.
func Ingress() Checks {
	return Checks{
		Create: created(validation.ValidateIngressCreate),
		Update: updated(validation.ValidateIngressUpdate),
		Status: updated(validation.ValidateIngressStatusUpdate, "status"),
	}
}

// IngressClass validates ingress classes.
func IngressClass() Checks {
	return Checks{Create: created(validation.ValidateIngressClass), Update: updated(validation.ValidateIngressClassUpdate)}
}

// NetworkPolicy validates network policies.
func NetworkPolicy() Checks {
	return Checks{
		Create: created(func(p *networking.NetworkPolicy) field.ErrorList {
			return validation.ValidateNetworkPolicy(p, validation.ValidationOptionsForNetworking(p, nil))
		}),
		Update: updated(func(p, old *networking.NetworkPolicy) field.ErrorList {
			return validation.ValidateNetworkPolicyUpdate(p, old, validation.ValidationOptionsForNetworking(p, old))
		}),
	}
}

// IPAddress validates the objects that stand for addresses in use.
func IPAddress() Checks {
	return Checks{
		Create: created(validation.ValidateIPAddress),
		Update: updated(both(validation.ValidateIPAddress, validation.ValidateIPAddressUpdate)),
	}
}

// ServiceCIDR validates ranges of cluster IPs.
func ServiceCIDR() Checks {
	return Checks{
		Create: created(validation.ValidateServiceCIDR),
		Update: updated(validation.ValidateServiceCIDRUpdate),
		Status: updated(validation.ValidateServiceCIDRStatusUpdate, "status"),
	}
}
