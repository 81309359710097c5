// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/kubernetes/pkg/apis/rbac/validation"
)

// Role validates roles.
func Role() Checks {
	return Checks{Create: created(validation.ValidateRole), Update: updated(validation.ValidateRoleUpdate)}
}

// ClusterRole validates cluster roles.
func ClusterRole() Checks {
	return Checks{
		Create: created(func(r *rbac.ClusterRole) field.ErrorList {
			return validation.ValidateClusterRole(r, validation.ClusterRoleValidationOptions{})
		}),
		Update: updated(func(r, old *rbac.ClusterRole) field.ErrorList {
			var o validation.ClusterRoleValidationOptions
			if old.AggregationRule != nil {
				for i := range old.AggregationRule.ClusterRoleSelectors {
					o.AllowInvalidLabelValueInSelector = o.AllowInvalidLabelValueInSelector || len(metav1validation.ValidateLabelSelector(
						&old.AggregationRule.ClusterRoleSelectors[i], metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
				}
			}
			return validation.ValidateClusterRoleUpdate(r, old, o)
		}),
	}
}

// RoleBinding validates role bindings.
func RoleBinding() Checks {
	return Checks{Create: created(validation.ValidateRoleBinding), Update: updated(validation.ValidateRoleBindingUpdate)}
}

// ClusterRoleBinding validates cluster role bindings.
func ClusterRoleBinding() Checks {
	return Checks{Create: created(validation.ValidateClusterRoleBinding), Update: updated(validation.ValidateClusterRoleBindingUpdate)}
}
