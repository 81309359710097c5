// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"

	"github.com/mortise-dev/mortise/resource"
)

// Scale validates the scale subresource of any kind.
func Scale() UpdateCheck {
	return updated(onlyNew(validation.ValidateScale), "scale")
}

// HorizontalPodAutoscaler validates autoscalers.
func HorizontalPodAutoscaler() Checks {
	d := declared{options: func(_, old resource.Object) map[string]bool {
		zero := Gate("HPAScaleToZero")
		if h, ok := old.(*autoscalingv2.HorizontalPodAutoscaler); ok && h != nil && h.Spec.MinReplicas != nil && *h.Spec.MinReplicas == 0 {
			zero = true
		}
		return map[string]bool{"HPAScaleToZero": zero}
	}}
	return Checks{
		Create: created(func(h *autoscaling.HorizontalPodAutoscaler) field.ErrorList {
			return validation.ValidateHorizontalPodAutoscaler(h, scalerOptions(h, nil))
		}, d),
		Update: updatedBy(func(h, old *autoscaling.HorizontalPodAutoscaler) field.ErrorList {
			return validation.ValidateHorizontalPodAutoscalerUpdate(h, old, scalerOptions(h, old))
		}, d),
		Status: updatedBy(validation.ValidateHorizontalPodAutoscalerStatusUpdate, d, "status"),
	}
}

// AutoscalerToV1 and AutoscalerToV2 convert autoscalers between the served versions. Fields that version 1 lacks are kept in annotations.
func AutoscalerToV1(obj resource.Object) (resource.Object, error) {
	out := &autoscalingv1.HorizontalPodAutoscaler{}
	return out, convertThrough[autoscaling.HorizontalPodAutoscaler](obj, out)
}

// AutoscalerToV2 is the inverse of AutoscalerToV1.
func AutoscalerToV2(obj resource.Object) (resource.Object, error) {
	out := &autoscalingv2.HorizontalPodAutoscaler{}
	return out, convertThrough[autoscaling.HorizontalPodAutoscaler](obj, out)
}

// scalerOptions returns what an autoscaler's validation allows; old is nil on create.
func scalerOptions(h, old *autoscaling.HorizontalPodAutoscaler) validation.HorizontalPodAutoscalerSpecValidationOptions {
	o := validation.HorizontalPodAutoscalerSpecValidationOptions{
		MinReplicasLowerBound:           1,
		ScaleTargetRefValidationOptions: validation.CrossVersionObjectReferenceValidationOptions{RequiredCoveredByDeclarative: true},
		ObjectMetricsValidationOptions:  validation.CrossVersionObjectReferenceValidationOptions{AllowEmptyAPIGroup: true},
	}
	if Gate("HPAScaleToZero") || old != nil && old.Spec.MinReplicas != nil && *old.Spec.MinReplicas == 0 {
		o.MinReplicasLowerBound = 0
	}
	target := h.Spec.ScaleTargetRef
	switch {
	case old != nil && old.Spec.ScaleTargetRef.APIVersion == target.APIVersion && old.Spec.ScaleTargetRef.Kind == target.Kind:
		o.ScaleTargetRefValidationOptions.AllowInvalidAPIVersion = true
	case target.Kind == "ReplicationController":
		o.ScaleTargetRefValidationOptions.AllowEmptyAPIGroup = true
	}
	if old == nil {
		return o
	}
	for _, m := range old.Spec.Metrics {
		if m.Type == autoscaling.ObjectMetricSourceType && m.Object != nil &&
			validation.ValidateAPIVersion(m.Object.DescribedObject, o.ObjectMetricsValidationOptions) != nil {
			o.ObjectMetricsValidationOptions.AllowInvalidAPIVersion = true
			break
		}
	}
	return o
}
