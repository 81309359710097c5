// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/topologymanager"
)

// hints returns the groups of NUMA nodes from which a container, or the pod if the container is nil, can have its memory. If there are
// none, it has no preference: then the allocation fails, as kubelet has it.
func (p *static) hints(pod *corev1.Pod, c *corev1.Container) map[string][]containermanager.TopologyHint {
	if p.unmanaged(pod) {
		return nil
	}
	want, err := p.wanted(pod, c)
	if err != nil {
		return nil
	}
	if c == nil && p.podLevel && podshare.PodLevel(pod) && p.leavesShared(pod, want) != nil {
		return answer(want, []containermanager.TopologyHint{})
	}
	if len(want) == 0 {
		return nil
	}
	for _, one := range podshare.Containers(pod) {
		if c != nil && one.Name != c.Name {
			continue
		}
		if blocks, has := p.state.Containers[string(pod.UID)][one.Name]; has {
			return again(blocks, want)
		}
	}
	list := p.possible(string(pod.UID), want)
	if len(list) == 0 {
		return nil
	}
	return answer(want, list)
}

func (p *static) wanted(pod *corev1.Pod, c *corev1.Container) (amounts, error) {
	if c == nil {
		return p.requestsOfPod(pod)
	}
	return p.requests(pod, c)
}

// answer gives the same hints for each kind of memory.
func answer(want amounts, list []containermanager.TopologyHint) map[string][]containermanager.TopologyHint {
	out := map[string][]containermanager.TopologyHint{}
	for name := range want {
		out[string(name)] = list
	}
	return out
}

// again returns the hints of memory that was allocated already; nil if it is not what is wanted now.
func again(blocks []state.Block, want amounts) map[string][]containermanager.TopologyHint {
	if len(blocks) != len(want) {
		return nil
	}
	out := map[string][]containermanager.TopologyHint{}
	for _, b := range blocks {
		if size, asked := want[b.Type]; !asked || size != b.Size {
			return nil
		}
		out[string(b.Type)] = append(out[string(b.Type)], containermanager.TopologyHint{
			Nodes: containermanager.NUMAMask(b.NUMAAffinity...), Preferred: true,
		})
	}
	return out
}

// possible returns the groups of nodes with enough free memory that give none to others. Preferred are those with as few nodes as an empty
// machine needs.
func (p *static) possible(uid string, want amounts) []containermanager.TopologyHint {
	nodes := slices.Sorted(maps.Keys(p.state.Machine))
	fewest := len(nodes)
	var out []containermanager.TopologyHint
	for group := range topologymanager.Subsets(nodes) {
		fits, full := true, false
		for name, size := range want {
			free, all := p.sums(group, name)
			fits = fits && all >= size
			full = full || free+p.reusable[uid][group][name] < size
		}
		if !fits {
			continue
		}
		fewest = min(fewest, group.Count())
		if group.Count() == 1 && len(p.state.Machine[nodesOf(group)[0]].Cells) > 1 || p.conflicts(group) || full {
			continue
		}
		out = append(out, containermanager.TopologyHint{Nodes: group})
	}
	for i := range out {
		out[i].Preferred = out[i].Nodes.Count() == fewest
	}
	return out
}

// narrowest returns the best hint that includes some nodes: a preferred one, the one with the fewest nodes, the one with the lowest.
func narrowest(hints []containermanager.TopologyHint, with containermanager.NUMANodes) (containermanager.TopologyHint, error) {
	var best containermanager.TopologyHint
	for _, h := range hints {
		if h.Nodes&with != with {
			continue
		}
		if !best.Aligned() || h.Preferred && !best.Preferred || h.Preferred == best.Preferred && topologymanager.Narrower(h.Nodes, best.Nodes) {
			best = h
		}
	}
	if !best.Aligned() {
		return best, errors.New("no group of NUMA nodes")
	}
	return best, nil
}
