// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, New, map[string]volumetest.Case{
		"an image": {
			Source: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "i"}}, ReadOnly: true, Foreign: true, Unmounted: true,
		},
	})
}
