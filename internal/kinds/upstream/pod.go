// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/apis/core/validation"
)

// Pod validates pods; [PodEphemeralContainers], [PodResize] and [PodBinding] validate their subresources.
func Pod() Checks {
	return Checks{
		Create: new(alikePods).check(created(func(pod *core.Pod) field.ErrorList {
			o := podOptions(nil)
			o.ResourceIsPod = true
			return validation.ValidatePodCreate(pod, o)
		})),
		Update: updated(podUpdate(validation.ValidatePodUpdate)),
		Status: updated(podUpdate(validation.ValidatePodStatusUpdate), "status"),
	}
}

// PodEphemeralContainers validates updates of a pod's ephemeral containers.
func PodEphemeralContainers() UpdateCheck {
	return updated(podUpdate(validation.ValidatePodEphemeralContainersUpdate), "ephemeralcontainers")
}

// PodResize validates updates of a pod's resources.
func PodResize() UpdateCheck {
	return updated(podUpdate(validation.ValidatePodResize), "resize")
}

// PodBinding validates the binding of a pod.
func PodBinding(b *corev1.Binding) field.ErrorList {
	return validation.ValidatePodBinding(internal[core.Binding](b))
}

// AppArmorProfile validates one AppArmor profile.
func AppArmorProfile(p *corev1.AppArmorProfile) field.ErrorList {
	in := &core.AppArmorProfile{Type: core.AppArmorProfileType(p.Type), LocalhostProfile: p.LocalhostProfile}
	return validation.ValidateAppArmorProfileField(in, &field.Path{})
}

// Tolerations validates a list of tolerations.
func Tolerations(ts []corev1.Toleration, path *field.Path) field.ErrorList {
	in := make([]core.Toleration, len(ts))
	for i, t := range ts {
		in[i] = core.Toleration{
			Key: t.Key, Operator: core.TolerationOperator(t.Operator), Value: t.Value, Effect: core.TaintEffect(t.Effect),
			TolerationSeconds: t.TolerationSeconds,
		}
	}
	return validation.ValidateTolerations(in, path, validation.PodValidationOptions{})
}

// podUpdate passes the options to a validation of a pod's update.
func podUpdate(f func(pod, old *core.Pod, o validation.PodValidationOptions) field.ErrorList) func(pod, old *core.Pod) field.ErrorList {
	return func(pod, old *core.Pod) field.ErrorList {
		o := podOptions(&old.Spec)
		o.ResourceIsPod = true
		return f(pod, old, o)
	}
}

// PodTemplate validates pod templates.
func PodTemplate() Checks {
	return Checks{
		Create: created(func(t *core.PodTemplate) field.ErrorList {
			return validation.ValidatePodTemplate(t, templateOptions(nil))
		}),
		Update: updated(func(t, old *core.PodTemplate) field.ErrorList {
			return validation.ValidatePodTemplateUpdate(t, old, templateOptions(&old.Template))
		}),
	}
}

// ReplicationController validates replication controllers.
func ReplicationController() Checks {
	return Checks{
		Create: created(func(rc *core.ReplicationController) field.ErrorList {
			return validation.ValidateReplicationController(rc, templateOptions(nil))
		}),
		Update: updated(func(rc, old *core.ReplicationController) field.ErrorList {
			return validation.ValidateReplicationControllerUpdate(rc, old, templateOptions(old.Spec.Template))
		}),
		Status: updated(validation.ValidateReplicationControllerStatusUpdate, "status"),
	}
}

// QOSClass returns the QoS class of a pod's resources.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass { return qos.ComputePodQOS(pod) }
