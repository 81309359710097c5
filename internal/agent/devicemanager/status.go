// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
)

// reporter tells who the devices belong to.
type reporter struct{ *Manager }

// Capacity returns the amounts of the plug-ins' resources. Those of plug-ins that are gone for good are zero.
func (m reporter) Capacity() (capacity, allocatable corev1.ResourceList) {
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = make(corev1.ResourceList, len(m.resources)), make(corev1.ResourceList, len(m.resources))
	for name, r := range m.resources {
		all, healthy := r.count()
		capacity[corev1.ResourceName(name)] = *apiresource.NewQuantity(all, apiresource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *apiresource.NewQuantity(healthy, apiresource.DecimalSI)
	}
	return capacity, allocatable
}

// Allocated returns how many devices of each resource pods have.
func (m reporter) Allocated() map[corev1.ResourceName]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[corev1.ResourceName]int64, len(m.resources))
	for name, r := range m.resources {
		if len(r.used) > 0 {
			out[corev1.ResourceName(name)] = int64(len(r.used))
		}
	}
	return out
}

// ResourceStatus returns the health of a container's devices. A device that its plug-in does not list is healthy, as for kubelet.
func (m reporter) ResourceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, name := range slices.SortedFunc(maps.Keys(m.pods[pod.UID][container]), strings.Compare) {
		s := corev1.ResourceStatus{Name: corev1.ResourceName(name), Resources: []corev1.ResourceHealth{}}
		for _, id := range m.pods[pod.UID][container][name].ids {
			health := corev1.ResourceHealthStatusHealthy
			if d, listed := m.resources[name].devices[id]; listed && !d.healthy {
				health = corev1.ResourceHealthStatusUnhealthy
			}
			s.Resources = append(s.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		out = append(out, s)
	}
	return out
}

// Devices returns what a container has, for the pod resources API: one entry for each device and each of its NUMA nodes.
func (m reporter) Devices(pod types.UID, container string) []*podresources.ContainerDevices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresources.ContainerDevices
	for _, name := range slices.SortedFunc(maps.Keys(m.pods[pod][container]), strings.Compare) {
		a := m.pods[pod][container][name]
		for _, node := range slices.Sorted(maps.Keys(a.numa)) {
			out = append(out, containerDevices(name, node, a.numa[node])...)
		}
	}
	return out
}

// Describe adds a container's devices.
func (m reporter) Describe(pod *corev1.Pod, container *corev1.Container, to *podresources.ContainerResources) {
	to.Devices = append(to.Devices, m.Devices(pod.UID, container.Name)...)
}

// DescribeNode adds all healthy devices.
func (m reporter) DescribeNode(to *podresources.AllocatableResourcesResponse) {
	to.Devices = append(to.Devices, m.AllocatableDevices()...)
}

// AllocatableDevices returns all healthy devices, for the pod resources API.
func (m reporter) AllocatableDevices() []*podresources.ContainerDevices {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []*podresources.ContainerDevices
	for _, name := range slices.SortedFunc(maps.Keys(m.resources), strings.Compare) {
		r := m.resources[name]
		var healthy []string
		for id, d := range r.devices {
			if d.healthy {
				healthy = append(healthy, id)
			}
		}
		slices.Sort(healthy)
		numa := r.perNUMA(healthy)
		for _, node := range slices.Sorted(maps.Keys(numa)) {
			out = append(out, containerDevices(name, node, numa[node])...)
		}
	}
	return out
}

func containerDevices(resource string, node int64, ids []string) []*podresources.ContainerDevices {
	var out []*podresources.ContainerDevices
	for _, id := range slices.Sorted(slices.Values(ids)) {
		d := &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
		if node != checkpoint.NoNUMA {
			d.Topology = &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}}
		}
		out = append(out, d)
	}
	return out
}
