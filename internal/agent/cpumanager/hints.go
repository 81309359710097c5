// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/topologymanager"
)

// hints returns the NUMA nodes from which a container, or the pod if the container is nil, can have its CPUs; nil: it needs none.
func (p *static) hints(pod *corev1.Pod, c *corev1.Container) map[string][]containermanager.TopologyHint {
	answer := func(list []containermanager.TopologyHint) map[string][]containermanager.TopologyHint {
		if list == nil {
			list = []containermanager.TopologyHint{} // impossible, while nil means no preference
		}
		return map[string][]containermanager.TopologyHint{string(corev1.ResourceCPU): list}
	}
	count := 0
	if c == nil {
		count = p.exclusiveOfPod(pod)
	} else {
		count = p.exclusive(pod, c)
	}
	if count == 0 || p.unmanaged(pod) {
		return nil
	}
	reusable := p.reusable(pod, c)
	if c != nil {
		has, ok := p.state.Containers[string(pod.UID)][c.Name]
		switch {
		case !ok:
			return answer(p.possible(p.available(), reusable, count))
		case has.Size() != count:
			return answer(nil)
		}
		return answer(p.possible(has, cpuset.New(), count))
	}
	if p.podLevel && podshare.PodLevel(pod) && p.leavesShared(pod, count) != nil {
		return answer(nil)
	}
	has, right := p.assignedTo(pod)
	switch {
	case !right:
		return answer(nil)
	case has.Size() == count:
		return answer(p.possible(has, cpuset.New(), count))
	}
	return answer(p.possible(p.available(), reusable.Union(has), count))
}

// possible returns the sets of NUMA nodes with enough free CPUs that contain all of the reusable ones. Preferred are those with as few
// nodes as an empty machine needs; with align-by-socket also those with as few sockets.
func (p *static) possible(free, reusable cpuset.CPUSet, count int) []containermanager.TopologyHint {
	nodes := p.topology.IDs(cputopology.NUMA)
	freeOf, reusableOf := map[int]int{}, map[int]int{}
	for _, node := range nodes {
		freeOf[node] = p.topology.In(cputopology.NUMA, node).Intersection(free).Size()
		reusableOf[node] = p.topology.In(cputopology.NUMA, node).Intersection(reusable).Size()
	}
	fewest := len(nodes)
	var out []containermanager.TopologyHint
	for set := range topologymanager.Subsets(nodes) {
		all, here, reused := 0, 0, 0
		for _, node := range nodes {
			if set.Has(node) {
				all += p.topology.In(cputopology.NUMA, node).Size()
				here += freeOf[node]
				reused += reusableOf[node]
			}
		}
		if all >= count {
			fewest = min(fewest, set.Count())
		}
		if reused == reusable.Size() && here+reused >= count {
			out = append(out, containermanager.TopologyHint{Nodes: set})
		}
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == fewest || p.options.AlignBySocket && p.fewSockets(out[i].Nodes, fewest)
	}
	return out
}

// fewSockets reports whether a set of NUMA nodes spans as few sockets as the fewest nodes do.
func (p *static) fewSockets(set containermanager.NUMANodes, fewest int) bool {
	perSocket := p.topology.Count(cputopology.NUMA) / p.topology.Count(cputopology.Socket)
	if perSocket == 0 {
		return false
	}
	cpus := cpuset.New()
	for _, node := range p.topology.IDs(cputopology.NUMA) {
		if set.Has(node) {
			cpus = cpus.Union(p.topology.In(cputopology.NUMA, node))
		}
	}
	return len(p.topology.Span(cputopology.Socket, cpus)) == (fewest+perSocket-1)/perSocket
}
