// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicetaint

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/mortise-dev/mortise/internal/controllers/resourceclaim"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// view is the input of eviction decisions.
type view struct {
	rules []*resourcev1.DeviceTaintRule
	claim func(namespace, name string) *resourcev1.ResourceClaim // returns nil if the claim does not exist
	pool  func(driver, pool string) []*resourcev1.ResourceSlice
}

// selects reports whether a rule selects a device. A rule without a selector selects none.
func selects(rule *resourcev1.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	fits := func(want *string, is string) bool { return want == nil || *want == is }
	return s != nil && fits(s.Driver, driver) && fits(s.Pool, pool) && fits(s.Device, device)
}

// eviction returns when to evict a pod (zero: never) and the rules that its eviction depends on.
func (v view) eviction(pod *corev1.Pod) (at time.Time, by []*resourcev1.DeviceTaintRule) {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return at, nil
	}
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == "" {
			continue
		}
		claim := v.claim(pod.Namespace, name)
		if claim == nil || claim.Status.Allocation == nil || own && !workload.Controlled(claim, pod) ||
			!slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
			continue
		}
		for j := range claim.Status.Allocation.Devices.Results {
			device := &claim.Status.Allocation.Devices.Results[j]
			for _, t := range v.taints(device) {
				due, ok := until(device.Tolerations, t.DeviceTaint)
				if !ok {
					continue
				}
				if at.IsZero() || due.Before(at) {
					at = due
				}
				if t.rule != nil && !slices.Contains(by, t.rule) {
					by = append(by, t.rule)
				}
			}
		}
	}
	return at, by
}

// taint is a taint and its rule, which is nil for a taint that the driver published.
type taint struct {
	resourcev1.DeviceTaint
	rule *resourcev1.DeviceTaintRule
}

// taints returns the NoExecute taints of a device. Only the newest generation of a pool counts.
func (v view) taints(device *resourcev1.DeviceRequestAllocationResult) []taint {
	var found []taint
	newest := v.pool(device.Driver, device.Pool)
	var generation int64
	for _, s := range newest {
		generation = max(generation, s.Spec.Pool.Generation)
	}
	for _, s := range newest {
		for i := range s.Spec.Devices {
			if s.Spec.Pool.Generation != generation || s.Spec.Devices[i].Name != device.Device {
				continue
			}
			for _, t := range s.Spec.Devices[i].Taints {
				if t.Effect == resourcev1.DeviceTaintEffectNoExecute {
					found = append(found, taint{t, nil})
				}
			}
		}
	}
	for _, rule := range v.rules {
		if rule.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute && selects(rule, device.Driver, device.Pool, device.Device) {
			found = append(found, taint{rule.Spec.Taint, rule})
		}
	}
	return found
}

// until returns when the tolerations stop tolerating a taint; false: never.
func until(tolerations []resourcev1.DeviceToleration, t resourcev1.DeviceTaint) (time.Time, bool) {
	at := time.Unix(0, 0) // a taint without a time is as old as can be
	if t.TimeAdded != nil {
		at = t.TimeAdded.Time
	}
	shortest := int64(-1)
	for _, toleration := range tolerations {
		if toleration.Effect != resourcev1.DeviceTaintEffectNoExecute || !tolerates(toleration, t) {
			continue
		}
		if toleration.TolerationSeconds == nil {
			return time.Time{}, false
		}
		// More than a century means for ever, and must not overflow.
		if s := min(max(*toleration.TolerationSeconds, 0), 100*365*24*3600); shortest < 0 || s < shortest {
			shortest = s
		}
	}
	return at.Add(time.Duration(max(shortest, 0)) * time.Second), true
}

func tolerates(toleration resourcev1.DeviceToleration, t resourcev1.DeviceTaint) bool {
	if toleration.Key != "" && toleration.Key != t.Key {
		return false
	}
	switch toleration.Operator {
	case "", resourcev1.DeviceTolerationOpEqual:
		return toleration.Value == t.Value
	case resourcev1.DeviceTolerationOpExists:
		return true
	}
	return false
}
