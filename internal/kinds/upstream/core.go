// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// Namespace validates namespaces; [NamespaceFinalize] validates their finalize subresource.
func Namespace() Checks {
	return Checks{
		Create: created(validation.ValidateNamespace),
		Update: updated(both(validation.ValidateNamespace, validation.ValidateNamespaceUpdate)),
		Status: updated(validation.ValidateNamespaceStatusUpdate, "status"),
	}
}

// NamespaceFinalize validates updates of a namespace's finalizers.
func NamespaceFinalize() UpdateCheck {
	return updated(validation.ValidateNamespaceFinalizeUpdate, "finalize")
}

// ConfigMap validates config maps.
func ConfigMap() Checks {
	return Checks{Create: created(validation.ValidateConfigMap), Update: updated(validation.ValidateConfigMapUpdate)}
}

// Secret validates secrets.
func Secret() Checks {
	return Checks{Create: created(validation.ValidateSecret), Update: updated(validation.ValidateSecretUpdate)}
}

// ServiceAccount validates service accounts.
func ServiceAccount() Checks {
	return Checks{Create: created(validation.ValidateServiceAccount), Update: updated(validation.ValidateServiceAccountUpdate)}
}

// Service validates services. Cluster IPs and ports must be allocated before.
func Service() Checks {
	return Checks{
		Create: created(validation.ValidateServiceCreate),
		Update: updated(validation.ValidateServiceUpdate),
		Status: updated(validation.ValidateServiceStatusUpdate, "status"),
	}
}

// ServiceClusterIPs validates that a service's address fields match each other; old is nil on create.
func ServiceClusterIPs(obj, old *corev1.Service) field.ErrorList {
	if old == nil {
		return validation.ValidateServiceClusterIPsRelatedFields(internal[*core.Service](obj), nil)
	}
	return validation.ValidateServiceClusterIPsRelatedFields(internal[*core.Service](obj), internal[*core.Service](old))
}

// Endpoints validates endpoints.
func Endpoints() Checks {
	return Checks{Create: created(validation.ValidateEndpointsCreate), Update: updated(validation.ValidateEndpointsUpdate)}
}

// Node validates nodes.
func Node() Checks {
	d := options(map[string]bool{"InPlacePodVerticalScalingSchedulerPreemption": Gate("InPlacePodVerticalScalingSchedulerPreemption")})
	return Checks{
		Create: created(validation.ValidateNode, d),
		Update: updatedBy(both(validation.ValidateNode, validation.ValidateNodeUpdate), d),
		Status: updatedBy(validation.ValidateNodeUpdate, d, "status"),
	}
}

// LimitRange validates limit ranges.
func LimitRange() Checks {
	return Checks{Create: created(validation.ValidateLimitRange), Update: updated(onlyNew(validation.ValidateLimitRange))}
}

// ResourceQuota validates resource quotas.
func ResourceQuota() Checks {
	return Checks{
		Create: created(validation.ValidateResourceQuota),
		Update: updated(validation.ValidateResourceQuotaUpdate),
		Status: updated(validation.ValidateResourceQuotaStatusUpdate, "status"),
	}
}
