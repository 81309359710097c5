// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// Limited reports whether the pod has limits of local storage that the node must enforce: those of volumes or containers.
func Limited(pod *corev1.Pod) bool {
	for _, v := range pod.Spec.Volumes {
		if bounded(v) {
			return true
		}
	}
	_, ok := storageLimit(pod)
	return ok || len(containerLimits(pod)) > 0
}

// bounded reports whether the volume is on disk and has a limit; the kernel enforces the limit of one in memory.
func bounded(v corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory && v.EmptyDir.SizeLimit != nil &&
		v.EmptyDir.SizeLimit.Sign() == 1
}

func storageLimit(pod *corev1.Pod) (resource.Quantity, bool) {
	q, ok := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	return q, ok
}

func containerLimits(pod *corev1.Pod) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	add := func(c corev1.Container) {
		if q := c.Resources.Limits[corev1.ResourceEphemeralStorage]; !q.IsZero() {
			out[c.Name] = q
		}
	}
	for _, c := range pod.Spec.Containers {
		add(c)
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	return out
}

// OverLimit returns the evictions of pods that exceed their limits of local storage.
func (m *Manager) OverLimit(pods []Pod) []Eviction {
	var out []Eviction
	for _, p := range pods {
		if !p.Known || podspec.IsCritical(p.Pod) {
			continue
		}
		if signal, why := m.overLimit(p); why != "" {
			out = append(out, Eviction{Pod: p.Pod, Signal: signal, Grace: atOnce, Message: why})
		}
	}
	return out
}

func (m *Manager) overLimit(p Pod) (Signal, string) {
	used := map[string]int64{}
	var sum int64
	for _, v := range p.Volumes {
		used[v.Name] = v.Bytes
	}
	for _, v := range p.Pod.Spec.Volumes {
		if bounded(v) && used[v.Name] > v.EmptyDir.SizeLimit.Value() {
			return emptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())
		}
		if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			sum += used[v.Name]
		}
	}
	for _, c := range p.Containers {
		sum += c.LayerBytes + c.LogBytes
	}
	if limit, ok := storageLimit(p.Pod); ok && sum > limit.Value() {
		return podLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	limits := containerLimits(p.Pod)
	for _, c := range p.Containers {
		takes := c.LogBytes
		if !m.ImageFS {
			takes += c.LayerBytes
		}
		if limit, ok := limits[c.Name]; ok && takes > limit.Value() {
			return containerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return "", ""
}
