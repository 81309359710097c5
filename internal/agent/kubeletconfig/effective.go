// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import configv1beta1 "k8s.io/kubelet/config/v1beta1"

// Effective returns the configuration that a node uses if it is given this one. Nil means kubelet's defaults with these exceptions: the
// node runs on a machine with swap, pulls images in parallel, listens on no well-known port, and accepts pods until 5% of the disk is left,
// as k3s does. Laptops and small machines rarely have as much free space as kubelet requires.
func Effective(given *configv1beta1.KubeletConfiguration) *configv1beta1.KubeletConfiguration {
	if given != nil {
		return given
	}
	c := Default()
	c.FailSwapOn, c.SerializeImagePulls, c.HealthzPort = new(false), new(false), new(int32(0))
	c.EvictionHard = DefaultEvictionHard()
	c.EvictionHard["nodefs.available"], c.EvictionHard["imagefs.available"] = "5%", "5%"
	return c
}
