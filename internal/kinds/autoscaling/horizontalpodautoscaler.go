// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package autoscaling describes the one stored kind of the group autoscaling.
package autoscaling

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// HorizontalPodAutoscaler describes autoscalers in versions 2 and 1, with the subresource status.
func HorizontalPodAutoscaler() *resource.Descriptor {
	check := upstream.HorizontalPodAutoscaler()
	gvk := autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler")
	v2 := kind.Version[*autoscalingv2.HorizontalPodAutoscaler](gvk)
	v2.Columns = upstream.Columns(gvk)
	v1 := kind.Version[*autoscalingv1.HorizontalPodAutoscaler](autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"))
	v1.Columns = v2.Columns
	v1.ToHub, v1.FromHub = upstream.AutoscalerToV2, upstream.AutoscalerToV1
	return kind.Describe[*autoscalingv2.HorizontalPodAutoscaler](resource.Descriptor{
		Group:      "autoscaling",
		Resource:   "horizontalpodautoscalers",
		Kind:       "HorizontalPodAutoscaler",
		ShortNames: []string{"hpa"},
		Categories: []string{"all"},
		Namespaced: true,
		Versions:   []resource.Version{v2, v1},
		Storage:    "v2",
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(h *autoscalingv2.HorizontalPodAutoscaler) {
				h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
				h.Generation = 1
			}),
			PrepareUpdate: kind.OnUpdate(func(h, old *autoscalingv2.HorizontalPodAutoscaler) {
				h.Status = old.Status
				if !kind.Same(h.Spec, old.Spec) {
					h.Generation = old.Generation + 1
				}
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
		},
		Subresources: []resource.Subresource{
			kind.Status(func(h, old *autoscalingv2.HorizontalPodAutoscaler) { h.Spec = old.Spec }, check.Status),
		},
	})
}
