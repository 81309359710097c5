// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	"k8s.io/kubernetes/pkg/apis/flowcontrol/validation"
)

// FlowSchema validates flow schemas.
func FlowSchema() Checks {
	return Checks{
		Create: created(validation.ValidateFlowSchema),
		Update: updated(func(fs, old *flowcontrol.FlowSchema) field.ErrorList {
			return validation.ValidateFlowSchemaUpdate(old, fs)
		}),
		Status: updated(func(fs, old *flowcontrol.FlowSchema) field.ErrorList {
			return validation.ValidateFlowSchemaStatusUpdate(old, fs)
		}, "status"),
	}
}

// PriorityLevelConfiguration validates priority levels.
func PriorityLevelConfiguration() Checks {
	check := func(pl *flowcontrol.PriorityLevelConfiguration) field.ErrorList {
		return validation.ValidatePriorityLevelConfiguration(pl, flowcontrolv1.SchemeGroupVersion, validation.PriorityLevelValidationOptions{})
	}
	return Checks{
		Create: created(check),
		Update: updated(onlyNew(check)),
		Status: updated(func(pl, old *flowcontrol.PriorityLevelConfiguration) field.ErrorList {
			return validation.ValidatePriorityLevelConfigurationStatusUpdate(old, pl)
		}, "status"),
	}
}
