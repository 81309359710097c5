// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// ResourceStatus returns the health of the devices in the container's claims, one entry for each of its claim references. Init and
// ephemeral containers have none, as with kubelet.
func (m *Manager) ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	if m.NoHealth || !hasClaims(pod) {
		return nil
	}
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if at < 0 {
		return nil
	}
	var out []corev1.ResourceStatus
	for _, wanted := range pod.Spec.Containers[at].Resources.Claims {
		i := slices.IndexFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.Name == wanted.Name })
		if i < 0 {
			continue
		}
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		c, ok := m.claims.get(pod.Namespace, *name)
		if !ok {
			continue
		}
		status := corev1.ResourceStatus{Name: corev1.ResourceName("claim:" + wanted.Name), Resources: m.healthIn(c, wanted.Request)}
		if wanted.Request != "" {
			status.Name += corev1.ResourceName("/" + wanted.Request)
		}
		if len(status.Resources) > 0 {
			out = append(out, status)
		}
	}
	return out
}

// healthIn returns the health of the devices for a request; an empty request: of all.
func (m *Manager) healthIn(c claim, request string) []corev1.ResourceHealth {
	var out []corev1.ResourceHealth
	seen := map[corev1.ResourceID]bool{}
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, d := range c.DriverState[driver].Devices {
			if request != "" && len(d.RequestNames) > 0 && !slices.Contains(d.RequestNames, resourceclaim.BaseRequestRef(request)) {
				continue
			}
			known := m.health.get(driver, d.PoolName, d.DeviceName)
			h := corev1.ResourceHealth{
				ResourceID: corev1.ResourceID(fmt.Sprintf("%s/%s/%s", driver, d.PoolName, d.DeviceName)), Health: known.Health,
			}
			if len(d.CDIDeviceIDs) > 0 {
				h.ResourceID = corev1.ResourceID(d.CDIDeviceIDs[0])
			}
			if known.Message != "" && !m.NoMessages {
				h.Message = new(known.Message)
			}
			if !seen[h.ResourceID] {
				seen[h.ResourceID] = true
				out = append(out, h)
			}
		}
	}
	return out
}
