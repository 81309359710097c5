// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
)

// allocatePod gives a pod with pod-level resources its memory, and distributes it among its containers: init containers that run once have
// what sidecars before them leave, and containers without memory of their own share what the others leave.
func (p *static) allocatePod(pod *corev1.Pod, affinity containermanager.TopologyHint) (err error) {
	uid := string(pod.UID)
	if _, has := p.state.Pods[uid]; has || !podshare.Guaranteed(pod) {
		return nil
	}
	total, err := p.requestsOfPod(pod)
	if err != nil {
		return nil //nolint:nilerr // as kubelet has it: the pod shares
	}
	p.metrics.MemoryRequests.Inc()
	defer func() {
		if err != nil {
			p.metrics.MemoryErrors.Inc()
			p.metrics.AllocationErrors.WithLabelValues(resourcemetrics.Memory, resourcemetrics.FromPod).Inc()
		}
	}()
	if err := p.leavesShared(pod, total); err != nil {
		return err
	}
	group, err := p.group(uid, total, affinity)
	if err != nil {
		return err
	}
	if err := p.distribute(pod, group, total); err != nil {
		return err
	}
	p.state.Pods[uid] = state.PodEntry{MemoryBlocks: blocksOf(group, total)}
	for _, name := range slices.Sorted(maps.Keys(total)) {
		place(p.state.Machine, group, name, total[name])
	}
	return nil
}

func blocksOf(group containermanager.NUMANodes, sizes amounts) []state.Block {
	out := []state.Block{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if sizes[name] > 0 {
			out = append(out, state.Block{NUMAAffinity: nodesOf(group), Type: name, Size: sizes[name]})
		}
	}
	return out
}

func (p *static) distribute(pod *corev1.Pod, group containermanager.NUMANodes, total amounts) error {
	left := maps.Clone(total)
	note := func(c *corev1.Container, sizes amounts, kind string) {
		p.state.Set(string(pod.UID), c.Name, blocksOf(group, sizes))
		p.metrics.Assignments.WithLabelValues(resourcemetrics.Memory, kind).Inc()
		p.metrics.Allocations.WithLabelValues(resourcemetrics.Memory, resourcemetrics.FromPod).Inc()
	}
	var sharing []*corev1.Container
	for _, c := range podshare.Containers(pod) {
		want, err := p.requests(pod, c)
		if err != nil {
			return err
		}
		once := podshare.RunsOnce(pod, c)
		switch {
		case len(want) > 0:
			p.metrics.MemoryRequests.Inc()
			note(c, want, resourcemetrics.PodExclusive)
			for name, size := range want {
				if !once {
					left[name] -= min(left[name], size)
				}
			}
		case once:
			note(c, left, resourcemetrics.PodShared)
		default:
			sharing = append(sharing, c)
		}
	}
	for _, c := range sharing {
		note(c, left, resourcemetrics.PodShared)
	}
	return nil
}

// leavesShared returns an error if a container of the pod needs shared memory, and the others leave none.
func (p *static) leavesShared(pod *corev1.Pod, total amounts) error {
	exclusive, sharing := amounts{}, false
	exhausted := func() corev1.ResourceName {
		for _, name := range slices.Sorted(maps.Keys(total)) {
			if exclusive[name] >= total[name] {
				return name
			}
		}
		return ""
	}
	for _, c := range podshare.Containers(pod) {
		want, err := p.requests(pod, c)
		if err != nil {
			return err
		}
		switch name := exhausted(); {
		case podshare.RunsOnce(pod, c):
			if len(want) == 0 && name != "" {
				return &containermanager.Rejection{Reason: podshare.EmptyPool, Message: fmt.Sprintf(
					"pod rejected, pod has shared init containers but no %s available for them", name)} // upstream's words
			}
		case len(want) == 0:
			sharing = true
		default:
			for name, size := range want {
				exclusive[name] += size
			}
		}
	}
	if name := exhausted(); sharing && name != "" {
		return &containermanager.Rejection{Reason: podshare.EmptyPool, Message: fmt.Sprintf("pod rejected, sum of exclusive container %s "+
			"requests equals pod budget, leaving no memory for shared containers", name)} // upstream's words
	}
	return nil
}
