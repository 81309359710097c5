// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// The runtime mounts the image, or a part of it that does not lead out.
func TestMounts(t *testing.T) {
	image := &runtimeapi.ImageSpec{Image: "sha256:1"}
	for sub, want := range map[string]string{
		"": "mounted", "a..b/c": "mounted",
		"/a": "must not be an absolute path", "a/../../b": "must not contain '..'", "..": "must not contain '..'",
	} {
		m, _, _, _ := volumetest.New(t, New)
		pod := volumetest.Pod(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}})
		c := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}}
		mounts, err := m.Mounts(t.Context(), pod, c, nil, map[string]*runtimeapi.ImageSpec{"v": image})
		got := fmt.Sprint(err)
		if err == nil {
			got = "mounted"
			made := mounts[0]
			if made.Image != image || made.ImageSubPath != sub || made.HostPath != "" || !made.Readonly || made.ContainerPath != "/m" {
				t.Errorf("%q: %v", sub, made)
			}
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", sub, got, want)
		}
		if _, err := m.Mounts(t.Context(), pod, c, nil, nil); err == nil || !strings.Contains(err.Error(), `volume "v" has no image yet`) {
			t.Errorf("without an image: %v", err)
		}
	}
}
