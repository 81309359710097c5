// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"slices"

	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// done are the gates of the features that the node has, of those that nodes declare.
var done = []string{
	"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// Features are what a node of the configuration declares (KEP-5328): the API server refuses changes of its pods that need others, and the
// scheduler does not bring it pods that do.
func Features(c *configv1beta1.KubeletConfiguration) []string {
	return ndf.DefaultFramework.DiscoverNodeFeatures(&ndf.NodeConfiguration{FeatureGates: declared{c}})
}

// declared are the gates as the framework asks for them.
type declared struct {
	of *configv1beta1.KubeletConfiguration
}

// Enabled says whether a gate is on, and the node has what it stands for.
func (d declared) Enabled(name string) bool {
	return slices.Contains(done, name) && componentconfig.GateOn(d.of.FeatureGates, name)
}
