// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"slices"

	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
)

// done are the gates of those declarable features that the node implements.
var done = []string{
	"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// Features returns the features that a node with the configuration declares (KEP-5328): the API server rejects changes of its pods that
// require others, and the scheduler does not bind such pods to it.
func Features(c *configv1beta1.KubeletConfiguration) []string {
	return ndf.DefaultFramework.DiscoverNodeFeatures(&ndf.NodeConfiguration{FeatureGates: declared{c}})
}

// declared implements the framework's interface of feature gates.
type declared struct {
	of *configv1beta1.KubeletConfiguration
}

// Enabled reports whether a gate is on, and the node implements its feature.
func (d declared) Enabled(name string) bool {
	return slices.Contains(done, name) && componentconfig.GateOn(d.of.FeatureGates, name)
}
