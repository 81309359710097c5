// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"k8s.io/kubernetes/pkg/apis/node/validation"
)

// RuntimeClass validates runtime classes.
func RuntimeClass() Checks {
	d := declared{rules: validation.NodeNormalizationRules}
	return Checks{
		Create: created(validation.ValidateRuntimeClass, d),
		Update: updatedBy(both(validation.ValidateRuntimeClass, validation.ValidateRuntimeClassUpdate), d),
	}
}
