// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/apps/validation"
)

// Deployment validates deployments.
func Deployment() Checks {
	return Checks{
		Create: created(func(d *apps.Deployment) field.ErrorList {
			return validation.ValidateDeployment(d, podOptions(nil))
		}),
		Update: updated(func(d, old *apps.Deployment) field.ErrorList {
			return validation.ValidateDeploymentUpdate(d, old, podOptions(&old.Spec.Template.Spec))
		}),
		Status: updated(validation.ValidateDeploymentStatusUpdate, "status"),
	}
}

// ReplicaSet validates replica sets.
func ReplicaSet() Checks {
	return Checks{
		Create: created(func(rs *apps.ReplicaSet) field.ErrorList {
			return validation.ValidateReplicaSet(rs, podOptions(nil))
		}),
		Update: updated(func(rs, old *apps.ReplicaSet) field.ErrorList {
			return validation.ValidateReplicaSetUpdate(rs, old, podOptions(&old.Spec.Template.Spec))
		}),
		Status: updated(validation.ValidateReplicaSetStatusUpdate, "status"),
	}
}

// DaemonSet validates daemon sets.
func DaemonSet() Checks {
	return Checks{
		Create: created(func(ds *apps.DaemonSet) field.ErrorList {
			return validation.ValidateDaemonSet(ds, podOptions(nil))
		}),
		Update: updated(func(ds, old *apps.DaemonSet) field.ErrorList {
			o := podOptions(&old.Spec.Template.Spec)
			o.AllowInvalidLabelValueInSelector = o.AllowInvalidLabelValueInSelector ||
				metav1validation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector)
			return validation.ValidateDaemonSetUpdate(ds, old, o)
		}),
		Status: updated(validation.ValidateDaemonSetStatusUpdate, "status"),
	}
}

// StatefulSet validates stateful sets.
func StatefulSet() Checks {
	return Checks{
		Create: created(func(s *apps.StatefulSet) field.ErrorList {
			o := validation.StatefulSetValidationOptions{AllowStatefulSetRecreateStrategy: Gate("StatefulSetRecreateStrategy")}
			return validation.ValidateStatefulSet(s, o, podOptions(nil))
		}),
		Update: updated(func(s, old *apps.StatefulSet) field.ErrorList {
			o := validation.StatefulSetValidationOptions{
				AllowInvalidServiceName:          true,
				SkipValidateVolumeClaimTemplates: true,
				AllowStatefulSetRecreateStrategy: Gate("StatefulSetRecreateStrategy") ||
					old.Spec.UpdateStrategy.Type == apps.RecreateStatefulSetStrategyType,
			}
			return validation.ValidateStatefulSetUpdate(s, old, o, podOptions(&old.Spec.Template.Spec))
		}),
		Status: updated(validation.ValidateStatefulSetStatusUpdate, "status"),
	}
}

// ControllerRevision validates controller revisions.
func ControllerRevision() Checks {
	return Checks{
		Create: created(validation.ValidateControllerRevisionCreate),
		Update: updated(validation.ValidateControllerRevisionUpdate),
	}
}
