// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
)

// named adds a check to the validation of a new object: its name must not be reserved for configuration from files.
func named[P metav1.Object](f func(P) field.ErrorList) func(P) field.ErrorList {
	return func(obj P) field.ErrorList {
		errs := f(obj)
		if Gate("ManifestBasedAdmissionControlConfig") {
			errs = append(errs, validation.ValidateStaticSuffix(obj.GetName(), field.NewPath("metadata", "name"))...)
		}
		return errs
	}
}

// StaticNameWarnings warns of a name that is reserved for configuration from files; old objects may have one.
func StaticNameWarnings(name string, update bool) []string {
	if !update && Gate("ManifestBasedAdmissionControlConfig") {
		return nil
	}
	return validation.WarningsForStaticSuffix(name)
}

// ValidatingWebhookConfiguration validates configurations of validating webhooks.
func ValidatingWebhookConfiguration() Checks {
	return Checks{
		Create: created(named(validation.ValidateValidatingWebhookConfiguration)),
		Update: updated(validation.ValidateValidatingWebhookConfigurationUpdate),
	}
}

// MutatingWebhookConfiguration validates configurations of mutating webhooks.
func MutatingWebhookConfiguration() Checks {
	return Checks{
		Create: created(named(validation.ValidateMutatingWebhookConfiguration)),
		Update: updated(validation.ValidateMutatingWebhookConfigurationUpdate),
	}
}

// ValidatingAdmissionPolicy validates validating policies, their expressions included.
func ValidatingAdmissionPolicy() Checks {
	return Checks{
		Create: created(named(validation.ValidateValidatingAdmissionPolicy)),
		Update: updated(validation.ValidateValidatingAdmissionPolicyUpdate),
		Status: updated(validation.ValidateValidatingAdmissionPolicyStatusUpdate, "status"),
	}
}

// ValidatingAdmissionPolicyBinding validates bindings of validating policies.
func ValidatingAdmissionPolicyBinding() Checks {
	return Checks{
		Create: created(named(validation.ValidateValidatingAdmissionPolicyBinding)),
		Update: updated(validation.ValidateValidatingAdmissionPolicyBindingUpdate),
	}
}

// MutatingAdmissionPolicy validates mutating policies, their expressions included.
func MutatingAdmissionPolicy() Checks {
	return Checks{
		Create: created(named(validation.ValidateMutatingAdmissionPolicy)),
		Update: updated(validation.ValidateMutatingAdmissionPolicyUpdate),
	}
}

// MutatingAdmissionPolicyBinding validates bindings of mutating policies.
func MutatingAdmissionPolicyBinding() Checks {
	return Checks{
		Create: created(named(validation.ValidateMutatingAdmissionPolicyBinding)),
		Update: updated(validation.ValidateMutatingAdmissionPolicyBindingUpdate),
	}
}
