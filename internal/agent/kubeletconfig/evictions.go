// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubeletconfig

import (
	"maps"
	"regexp"
	"slices"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/evict"
)

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?\.)*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

// Evictions returns the thresholds of eviction.
func Evictions(c *configv1beta1.KubeletConfiguration) ([]evict.Threshold, error) {
	return evict.Parse(evict.Settings{
		Hard: EvictionHard(c), Soft: c.EvictionSoft, SoftGracePeriod: c.EvictionSoftGracePeriod, MinimumReclaim: c.EvictionMinimumReclaim,
		Pods: slices.Contains(c.EnforceNodeAllocatable, enforcePods),
	})
}

// EvictionHard returns the hard thresholds: the configured ones, with the default ones if they are to be merged, or the default ones if
// none are configured.
func EvictionHard(c *configv1beta1.KubeletConfiguration) map[string]string {
	switch {
	case c.EvictionHard == nil:
		return DefaultEvictionHard()
	case c.MergeDefaultEvictionSettings != nil && *c.MergeDefaultEvictionSettings:
		out := DefaultEvictionHard()
		maps.Copy(out, c.EvictionHard)
		return out
	}
	return c.EvictionHard
}
