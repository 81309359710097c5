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
)

// adopt returns the state as it is under the policy. kubelet refuses to start with the state of another policy, of another reservation or
// of a machine with other memory. Here pods keep their memory if the nodes still have as much; the log names those whose memory is no
// longer reserved. They continue to run, on the NUMA nodes that they have.
func (m *Manager) adopt(old state.State) state.State {
	if m.policy == nil {
		for _, pod := range slices.Sorted(maps.Keys(old.Containers)) {
			m.c.Logger.Warn("The policy None reserves no memory: the pod keeps its NUMA nodes until its containers restart", "podUID", pod,
				"formerPolicy", old.Policy)
		}
		return state.State{Policy: m.c.Policy, Machine: state.NUMANodeMap{}}
	}
	out := state.State{
		Policy: m.c.Policy, Machine: m.policy.empty(),
		Containers: state.ContainerMemoryAssignments{}, Pods: state.PodMemoryAssignments{},
	}
	lost := false
	for _, pod := range slices.Sorted(maps.Keys(old.Containers)) {
		blocks := old.Pods[pod].MemoryBlocks
		if len(blocks) == 0 {
			for _, name := range slices.Sorted(maps.Keys(old.Containers[pod])) {
				blocks = append(blocks, old.Containers[pod][name]...)
			}
		}
		next := state.State{Machine: out.Machine}.Clone().Machine
		if err := putBack(next, blocks); err != nil {
			lost = true
			m.c.Logger.Warn("The memory of the pod is not reserved any more: it keeps its NUMA nodes until its containers restart",
				"podUID", pod, "err", err, "formerPolicy", old.Policy)
			continue
		}
		out.Machine = next
		out.Containers[pod] = old.Containers[pod]
		if entry, ok := old.Pods[pod]; ok {
			out.Pods[pod] = entry
		}
	}
	if !lost && old.Policy == m.c.Policy && sameMachine(old.Machine, out.Machine) {
		out.Machine = old.Machine // its nodes may have given their memory in another order
	}
	return out.Clone()
}

// putBack places blocks on the machine, or returns why they do not fit.
func putBack(m state.NUMANodeMap, blocks []state.Block) error {
	for _, b := range blocks {
		group := containermanager.NUMAMask(b.NUMAAffinity...)
		var free uint64
		for _, node := range nodesOf(group) {
			t := table(m, node, b.Type)
			if t == nil {
				return fmt.Errorf("NUMA node %d has no %s", node, b.Type)
			}
			free += t.Free
		}
		if free < b.Size {
			return fmt.Errorf("NUMA nodes %v have %d bytes of %s left, not %d", b.NUMAAffinity, free, b.Type, b.Size)
		}
		place(m, group, b.Type, b.Size)
	}
	return nil
}

// sameMachine reports whether two states of the machine differ at most in which node gives how much, and in the groups of nodes: both
// depend on the order of the allocations.
func sameMachine(a, b state.NUMANodeMap) bool {
	given := map[corev1.ResourceName]uint64{}
	for id, x := range a {
		y := b[id]
		if y == nil || x.NumberOfAssignments != y.NumberOfAssignments || len(x.MemoryMap) != len(y.MemoryMap) {
			return false
		}
		for name, t := range x.MemoryMap {
			u := y.MemoryMap[name]
			if u == nil || t.TotalMemSize != u.TotalMemSize || t.SystemReserved != u.SystemReserved || t.Allocatable != u.Allocatable {
				return false
			}
			given[name] += t.Reserved - u.Reserved
		}
	}
	for _, difference := range given {
		if difference != 0 {
			return false
		}
	}
	return len(a) == len(b)
}
