// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package emptydir

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, New, map[string]volumetest.Case{
		"on the disk": {Source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, Measure: volumes.MeasureFiles},
		"in memory": {
			Source:  corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}},
			Measure: volumes.MeasureFileSystem,
		},
		"no medium": {
			Source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Tape"}}, Fails: `unknown storage medium "Tape"`,
		},
	})
}
