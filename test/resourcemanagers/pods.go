// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// pod makes a pod: mostly a Guaranteed one with whole CPUs, with init containers and sidecars now and then.
func pod(r *rand.Rand, number int, m cputopology.Machine, podLevel bool) *corev1.Pod {
	uid := fmt.Sprintf("pod-%d", number)
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	always := corev1.ContainerRestartPolicyAlways
	for i := range pick(r, 0, 0, 0, 1, 1, 2, 3) {
		c := container(r, fmt.Sprintf("init-%d", i), m)
		if r.IntN(3) == 0 {
			c.RestartPolicy = &always
		}
		out.Spec.InitContainers = append(out.Spec.InitContainers, c)
	}
	for i := range pick(r, 1, 1, 1, 2, 3) {
		out.Spec.Containers = append(out.Spec.Containers, container(r, fmt.Sprintf("app-%d", i), m))
	}
	if podLevel && r.IntN(2) == 0 {
		addPodLevel(r, out)
	}
	return out
}

func container(r *rand.Rand, name string, m cputopology.Machine) corev1.Container {
	cpus := pick(r, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16)
	if r.IntN(2) == 0 {
		cpus = min(cpus, 4)
	}
	milli := int64(cpus) * 1000
	if r.IntN(10) == 0 {
		milli += 500
	}
	memory := int64(1+r.IntN(6)) << 30
	if r.IntN(6) == 0 {
		memory *= 4
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
	}
	for _, pages := range m.Nodes[0].HugePages {
		if r.IntN(4) == 0 {
			size := resource.NewQuantity(int64(pages.Size), resource.BinarySI)
			list[corev1.ResourceName(corev1.ResourceHugePagesPrefix+size.String())] = *resource.NewQuantity(
				int64(pages.Size)*int64(1+r.IntN(3)), resource.BinarySI)
		}
	}
	out := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
	switch r.IntN(16) {
	case 0: // the pod is Burstable
		out.Resources.Limits = nil
	case 1: // best effort, and the pod Burstable
		out.Resources = corev1.ResourceRequirements{}
	}
	return out
}

// addPodLevel gives a pod resources of its own: as much as its containers need, or more. Of a pod with less, which the API server rejects,
// kubelet never gets the CPUs back.
func addPodLevel(r *rand.Rand, p *corev1.Pod) {
	sum, most := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range p.Spec.InitContainers {
		limit(r, &p.Spec.InitContainers[i])
	}
	for i := range p.Spec.Containers {
		limit(r, &p.Spec.Containers[i])
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		once := slices.ContainsFunc(p.Spec.InitContainers, func(i corev1.Container) bool { return i.Name == c.Name && i.RestartPolicy == nil })
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			q := sum[name].DeepCopy()
			q.Add(c.Resources.Requests[name])
			if !once {
				sum[name] = q
			}
			if old := most[name]; old.Cmp(q) < 0 {
				most[name] = q
			}
		}
	}
	cpus, memory := most[corev1.ResourceCPU], most[corev1.ResourceMemory]
	cpus.Add(*resource.NewMilliQuantity(int64(pick(r, 0, 0, 1000, 2000)), resource.DecimalSI))
	memory.Add(*resource.NewQuantity(int64(pick(r, 0, 1, 2))<<30, resource.BinarySI))
	if cpus.IsZero() {
		cpus = resource.MustParse("1")
	}
	if memory.IsZero() {
		memory = resource.MustParse("1Gi")
	}
	list := corev1.ResourceList{corev1.ResourceCPU: cpus, corev1.ResourceMemory: memory}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: list, Limits: list}
}

// limit leaves a container at most few CPUs and no huge pages, or nothing.
func limit(r *rand.Rand, c *corev1.Container) {
	if r.IntN(3) == 0 {
		c.Resources = corev1.ResourceRequirements{}
	}
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		for name := range list {
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory {
				delete(list, name)
			}
		}
	}
}
