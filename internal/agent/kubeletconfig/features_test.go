// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// TestFeatures is what nodes declare: what they have, and their gates leave on.
func TestFeatures(t *testing.T) {
	for _, c := range []struct {
		name  string
		gates map[string]bool
		want  []string
	}{
		{"by default", nil, []string{
			"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			"RestartAllContainersOnContainerExits",
		}},
		{"one is off", map[string]bool{"InPlacePodLevelResourcesVerticalScaling": false}, []string{
			"ExtendWebSocketsToKubelet", "InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits",
		}},
		{"one is on that nobody has written", map[string]bool{"VolumeBindMountOptions": true, "RestartAllContainersOnContainerExits": false},
			[]string{
				"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
			}},
	} {
		if d := cmp.Diff(c.want, Features(&configv1beta1.KubeletConfiguration{FeatureGates: c.gates})); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}
