// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package configmap

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, New, map[string]volumetest.Case{
		"all keys": {
			Source:   corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			ReadOnly: true, Measure: volumes.MeasureFiles,
		},
		"a key in a directory": {
			Source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "k", Path: "a/b"}},
			}}, ReadOnly: true, Measure: volumes.MeasureFiles,
		},
		"no ConfigMap": {
			Source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "no"}}},
			Fails:  `configmap "no" not found`,
		},
	})
}
