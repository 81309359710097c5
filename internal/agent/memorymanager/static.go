// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
)

// static is the static policy: it reserves the memory of containers of Guaranteed pods on as few NUMA nodes as can be. A node gives memory
// either to containers of its own, or to those of one group of nodes. It belongs to the Manager, whose lock guards it.
type static struct {
	machine  cputopology.Machine
	reserved map[int]amounts // by NUMA node
	podLevel bool
	metrics  *resourcemetrics.Metrics

	state *state.State
	// reusable is what init containers that have ended leave to the next containers of their pod, by UID and group of nodes.
	reusable map[string]map[containermanager.NUMANodes]amounts
}

// empty returns the memory of the machine without containers.
func (p *static) empty() state.NUMANodeMap {
	out := state.NUMANodeMap{}
	for _, node := range p.machine.Nodes {
		table := map[corev1.ResourceName]*state.MemoryTable{}
		var huge uint64
		for _, pages := range node.HugePages {
			name := runconfig.HugePages(int64(pages.Size))
			total := pages.Size * pages.Count
			huge += total
			table[name] = tableOf(total, p.reserved[node.ID][name], 0)
		}
		table[corev1.ResourceMemory] = tableOf(node.Memory, p.reserved[node.ID][corev1.ResourceMemory], huge)
		out[node.ID] = &state.NUMANodeState{MemoryMap: table, Cells: []int{node.ID}}
	}
	return out
}

// tableOf returns a table with nothing given to containers. More reserved than there is leaves nothing.
func tableOf(total, reserved, elsewhere uint64) *state.MemoryTable {
	free := total - min(total, reserved+elsewhere)
	return &state.MemoryTable{TotalMemSize: total, SystemReserved: reserved, Allocatable: free, Free: free}
}

// table returns a NUMA node's memory of a kind; nil: it has none.
func table(m state.NUMANodeMap, node int, name corev1.ResourceName) *state.MemoryTable {
	if m[node] == nil {
		return nil
	}
	return m[node].MemoryMap[name]
}

// requests returns a container's exclusive memory; none: it has none.
func (p *static) requests(pod *corev1.Pod, c *corev1.Container) (amounts, error) {
	if p.podLevel && podshare.PodLevel(pod) && !podshare.Equal(c) {
		return nil, nil
	}
	return bytesOf(c.Resources.Requests, true)
}

// bytesOf returns the memory in a list.
func bytesOf(list corev1.ResourceList, zeros bool) (amounts, error) {
	out := amounts{}
	for name, q := range list {
		if !isMemory(name) {
			continue
		}
		n, ok := q.AsInt64()
		if !ok || n < 0 {
			return nil, errors.New("[memorymanager] failed to represent quantity as int64") // upstream's words
		}
		if n > 0 || zeros {
			out[name] = uint64(n)
		}
	}
	return out, nil
}

// requestsOfPod returns the most memory that the pod's containers have at the same time. A kind that only init containers request does not
// count, as kubelet has it.
func (p *static) requestsOfPod(pod *corev1.Pod) (amounts, error) {
	if p.podLevel && podshare.PodLevel(pod) {
		return bytesOf(pod.Spec.Resources.Requests, false)
	}
	each := map[string]amounts{}
	for _, c := range podshare.Containers(pod) {
		n, err := p.requests(pod, c)
		if err != nil {
			return nil, err
		}
		each[c.Name] = n
	}
	out := amounts{}
	for i := range pod.Spec.Containers {
		for name := range each[pod.Spec.Containers[i].Name] {
			out[name] = podshare.Together(pod, func(c *corev1.Container) uint64 { return each[c.Name][name] })
		}
	}
	return out, nil
}

// unmanaged reports whether a pod's memory is not exclusive.
func (p *static) unmanaged(pod *corev1.Pod) bool {
	return !podshare.Guaranteed(pod) || !p.podLevel && podshare.PodLevel(pod)
}

// allocate gives a container its memory. A container that has some keeps it.
func (p *static) allocate(pod *corev1.Pod, c *corev1.Container, affinity containermanager.TopologyHint) (err error) {
	if p.unmanaged(pod) {
		return nil
	}
	want, err := p.requests(pod, c)
	if err != nil || len(want) == 0 {
		return err
	}
	p.metrics.MemoryRequests.Inc()
	defer func() {
		if err != nil {
			p.metrics.MemoryErrors.Inc()
			p.metrics.AllocationErrors.WithLabelValues(resourcemetrics.Memory, resourcemetrics.FromNode).Inc()
		}
	}()
	uid := string(pod.UID)
	if blocks, has := p.state.Containers[uid][c.Name]; has {
		p.noteReusable(pod, c, blocks)
		return nil
	}
	group, err := p.group(uid, want, affinity)
	if err != nil {
		return err
	}
	var blocks []state.Block
	for _, name := range slices.Sorted(maps.Keys(want)) {
		blocks = append(blocks, state.Block{NUMAAffinity: nodesOf(group), Type: name, Size: want[name]})
		place(p.state.Machine, group, name, want[name]-min(want[name], p.reusable[uid][group][name]))
		p.metrics.Allocations.WithLabelValues(resourcemetrics.Memory, resourcemetrics.FromNode).Inc()
	}
	p.noteReusable(pod, c, blocks)
	p.state.Set(uid, c.Name, blocks)
	p.takeFromInit(pod, c, blocks)
	p.metrics.Assignments.WithLabelValues(resourcemetrics.Memory, resourcemetrics.NodeExclusive).Inc()
	return nil
}

// group returns the NUMA nodes that give the memory: those of the affinity, with others if these are not enough.
func (p *static) group(uid string, want amounts, affinity containermanager.TopologyHint) (containermanager.NUMANodes, error) {
	best := affinity
	if !best.Aligned() {
		var err error
		if best, err = narrowest(p.possible(uid, want), 0); err != nil { // upstream's words, here and below
			return 0, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		if !best.Preferred && affinity.Preferred {
			return 0, errors.New("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !p.enough(best.Nodes, want) {
		wider, err := narrowest(p.possible(uid, want), best.Nodes)
		if err != nil {
			return 0, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		if !wider.Preferred && best.Preferred {
			return 0, errors.New("[memorymanager] failed to find the extended preferred hint")
		}
		best = wider
	}
	if p.conflicts(best.Nodes) {
		return 0, errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return best.Nodes, nil
}

// enough reports whether a group has so much free memory.
func (p *static) enough(group containermanager.NUMANodes, want amounts) bool {
	for name, size := range want {
		free, _ := p.sums(group, name)
		if free < size {
			return false
		}
	}
	return true
}

// sums returns the free and the allocatable memory of a group.
func (p *static) sums(group containermanager.NUMANodes, name corev1.ResourceName) (free, all uint64) {
	for _, node := range nodesOf(group) {
		if t := table(p.state.Machine, node, name); t != nil {
			free += t.Free
			all += t.Allocatable
		}
	}
	return free, all
}

// conflicts reports whether a node of a group of several gives memory to others than this very group. That a single node is in a group is
// no conflict here: hints leave such nodes out, and an affinity that names one is obeyed, as kubelet has it.
func (p *static) conflicts(group containermanager.NUMANodes) bool {
	if group.Count() == 1 {
		return false
	}
	for _, node := range nodesOf(group) {
		if s := p.state.Machine[node]; s != nil && s.NumberOfAssignments > 0 && containermanager.NUMAMask(s.Cells...) != group {
			return true
		}
	}
	return false
}

// place takes memory from the nodes of a group, the lower ones first.
func place(m state.NUMANodeMap, group containermanager.NUMANodes, name corev1.ResourceName, size uint64) {
	for _, node := range nodesOf(group) {
		m[node].NumberOfAssignments++
		m[node].Cells = nodesOf(group)
		if t := table(m, node, name); t != nil {
			n := min(size, t.Free)
			t.Free -= n
			t.Reserved += n
			size -= n
		}
	}
}

// free gives memory back to the nodes of its groups, the lower ones first.
func free(m state.NUMANodeMap, blocks []state.Block) {
	for _, b := range blocks {
		size := b.Size
		for _, node := range b.NUMAAffinity {
			s := m[node]
			if s == nil {
				continue
			}
			if s.NumberOfAssignments--; s.NumberOfAssignments <= 0 {
				s.NumberOfAssignments, s.Cells = 0, []int{node}
			}
			if t := s.MemoryMap[b.Type]; t != nil {
				n := min(size, t.Reserved)
				t.Free += n
				t.Reserved -= n
				size -= n
			}
		}
	}
}

// noteReusable notes what an init container leaves to the pod's next containers, or what another container has taken of it.
func (p *static) noteReusable(pod *corev1.Pod, c *corev1.Container, blocks []state.Block) {
	uid := string(pod.UID)
	if p.reusable[uid] == nil {
		p.reusable[uid] = map[containermanager.NUMANodes]amounts{}
	}
	of := p.reusable[uid]
	for _, b := range blocks {
		group := containermanager.NUMAMask(b.NUMAAffinity...)
		if of[group] == nil {
			of[group] = amounts{}
		}
		if podshare.RunsOnce(pod, c) {
			of[group][b.Type] = max(of[group][b.Type], b.Size)
		} else {
			of[group][b.Type] -= min(of[group][b.Type], b.Size)
		}
	}
}

// takeFromInit takes what a container reuses away from the init containers before it, so that the sum of all is what the nodes give.
func (p *static) takeFromInit(pod *corev1.Pod, c *corev1.Container, blocks []state.Block) {
	uid := string(pod.UID)
	for _, b := range blocks {
		group, rest := containermanager.NUMAMask(b.NUMAAffinity...), b.Size
		for i := range pod.Spec.InitContainers {
			init := &pod.Spec.InitContainers[i]
			if init.Name == c.Name || rest == 0 {
				break
			}
			if !podshare.RunsOnce(pod, init) {
				continue
			}
			theirs := p.state.Containers[uid][init.Name]
			for j := range theirs {
				if theirs[j].Type == b.Type && containermanager.NUMAMask(theirs[j].NUMAAffinity...) == group {
					n := min(rest, theirs[j].Size)
					theirs[j].Size -= n
					rest -= n
				}
			}
		}
	}
}

// remove takes a container's memory back; that of a pod with pod-level resources with its last container.
func (p *static) remove(uid, container string) {
	blocks, has := p.state.Containers[uid][container]
	p.state.Delete(uid, container)
	if entry, whole := p.state.Pods[uid]; whole {
		if len(p.state.Containers[uid]) == 0 {
			free(p.state.Machine, entry.MemoryBlocks)
			delete(p.state.Pods, uid)
		}
		return
	}
	if has {
		free(p.state.Machine, blocks)
	}
}

// release takes a pod's memory back.
func (p *static) release(uid string) {
	for _, name := range slices.Sorted(maps.Keys(p.state.Containers[uid])) {
		p.remove(uid, name)
	}
	delete(p.reusable, uid)
}

// nodesOf returns the members of a group, sorted.
func nodesOf(group containermanager.NUMANodes) []int {
	var out []int
	for node := range 64 {
		if group.Has(node) {
			out = append(out, node)
		}
	}
	return out
}
