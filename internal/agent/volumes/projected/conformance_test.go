// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, New, map[string]volumetest.Case{
		"two sources": {
			Source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			}}}, ReadOnly: true, Measure: volumes.MeasureFiles,
		},
		"nothing": {Source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, ReadOnly: true, Measure: volumes.MeasureFiles},
		"no source": {
			Source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}, Fails: "does not support",
		},
	})
}
