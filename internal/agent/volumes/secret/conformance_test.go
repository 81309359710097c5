// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package secret

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func TestConformance(t *testing.T) {
	volumetest.Run(t, New, map[string]volumetest.Case{
		"all keys": {
			Source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, ReadOnly: true, Measure: volumes.MeasureFiles,
		},
		"no Secret": {Source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "no"}}, Fails: `secret "no" not found`},
	})
}
