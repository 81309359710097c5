// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Describe adds the claims of a container, with all of their devices. Like kubelet's, a device's list of CDI devices has those of the
// driver's devices before it.
func (m *Manager) Describe(pod *corev1.Pod, c *corev1.Container, to *podresources.ContainerResources) {
	if !hasClaims(pod) {
		return
	}
	uses, err := usesOf(pod, c)
	if err != nil {
		return // the container does not start either
	}
	for _, use := range uses {
		has, ok := m.claims.get(pod.Namespace, use.claim)
		if !ok {
			continue
		}
		one := &podresources.DynamicResource{ClaimName: has.ClaimName, ClaimNamespace: has.Namespace}
		for _, driver := range slices.Sorted(maps.Keys(has.DriverState)) {
			var cdi []*podresources.CDIDevice
			for _, d := range has.DriverState[driver].Devices {
				for _, id := range d.CDIDeviceIDs {
					cdi = append(cdi, &podresources.CDIDevice{Name: id})
				}
				one.ClaimResources = append(one.ClaimResources, &podresources.ClaimResource{
					CdiDevices: slices.Clone(cdi), DriverName: driver, PoolName: d.PoolName, DeviceName: d.DeviceName, ShareId: (*string)(d.ShareID),
				})
			}
		}
		to.DynamicResources = append(to.DynamicResources, one)
	}
}

// DescribeNode adds nothing: drivers publish their devices in ResourceSlices.
func (*Manager) DescribeNode(*podresources.AllocatableResourcesResponse) {}
