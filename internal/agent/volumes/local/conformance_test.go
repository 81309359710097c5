// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: t.TempDir()}},
	}}
	volumetest.Run(t, New, map[string]volumetest.Case{
		"claimed": {
			Source: claim, PersistentVolume: pv, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"claimed to read": {
			Source:           corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}},
			PersistentVolume: pv, ReadOnly: true, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"no directory": {
			Source: claim, Fails: "look at local volume",
			PersistentVolume: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/no/such"}},
			}},
		},
	})
}
