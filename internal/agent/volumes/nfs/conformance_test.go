// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nfs

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
		PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files.example", Path: "/a"}},
	}}
	volumetest.Run(t, New, map[string]volumetest.Case{
		"of the pod": {Source: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files.example", Path: "/a"}}, Foreign: true},
		"to be read": {
			Source:  corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files.example", Path: "/a", ReadOnly: true}},
			Foreign: true, ReadOnly: true,
		},
		"claimed": {
			Source: claim, PersistentVolume: pv, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"claimed to read": {
			Source:           corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}},
			PersistentVolume: pv, ReadOnly: true, Measure: volumes.MeasureFileSystem, Foreign: true,
		},
		"no server": {
			Source: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "gone", Path: "/a"}}, Fails: "mount failed: no such server",
		},
	})
}
