// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/policy/validation"
)

// PodDisruptionBudget validates disruption budgets.
func PodDisruptionBudget() Checks {
	return Checks{
		Create: created(func(b *policy.PodDisruptionBudget) field.ErrorList {
			return validation.ValidatePodDisruptionBudget(b, validation.PodDisruptionBudgetValidationOptions{})
		}),
		Update: updated(func(b, old *policy.PodDisruptionBudget) field.ErrorList {
			return validation.ValidatePodDisruptionBudget(b, validation.PodDisruptionBudgetValidationOptions{
				AllowInvalidLabelValueInSelector: old.Spec.Selector != nil && len(metav1validation.ValidateLabelSelector(
					old.Spec.Selector, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0,
			})
		}),
		Status: updated(func(b, old *policy.PodDisruptionBudget) field.ErrorList {
			return validation.ValidatePodDisruptionBudgetStatusUpdate(b.Status, old.Status, field.NewPath("status"), policyv1.SchemeGroupVersion)
		}, "status"),
	}
}
