// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cputopology describes how a machine's CPUs, caches and memory are arranged: threads in cores, cores below last-level caches, in
// NUMA nodes and in sockets. A [Machine] is read from sysfs, or made up in a test; a [Topology] answers questions about its CPUs. Both are
// never changed after they are made, so any number of goroutines may use them.
//
//	cputopology.go  Machine and Topology
//	sysfs.go        reads a Machine from sysfs
//
// A CPU is one hardware thread, as the kernel numbers it. A core's ID is its lowest CPU, which is unique on the machine, unlike the
// kernel's core_id.
package cputopology

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"
)

// NoUncore means that a core has no last-level cache that only some cores of its NUMA node share.
const NoUncore = -1

// Machine is what a machine consists of.
type Machine struct {
	Nodes []Node
}

// Node is a NUMA node. It may have memory and no cores.
type Node struct {
	ID        int
	Memory    uint64 // bytes
	HugePages []HugePages
	Distances []uint64 // to each node of the machine, in the order of their IDs; nil: unknown
	Cores     []Core
}

// HugePages are the reserved huge pages of one size.
type HugePages struct {
	Size  uint64 // bytes
	Count uint64
}

// Core is a physical core.
type Core struct {
	Socket  int
	Threads []int // its CPUs
	Uncore  int   // ID of the last-level cache that only some cores of the NUMA node share, or NoUncore
}

// Level is a level of a Topology.
type Level int

// Levels of a topology. None contains another by definition: a socket may have several NUMA nodes, and a NUMA node several sockets.
const (
	NUMA Level = iota
	Socket
	Uncore
	PhysicalCore
	levels
)

// CPU is the place of a CPU: an ID for each level.
type CPU [levels]int

// Topology is the arrangement of a machine's CPUs.
type Topology struct {
	CPUs map[int]CPU

	all    cpuset.CPUSet
	counts [levels]int
	of     [levels]map[int]cpuset.CPUSet
}

// New computes the topology of a machine. A machine without CPUs, or with a CPU in two places, is an error.
func New(m Machine) (*Topology, error) {
	t := &Topology{CPUs: map[int]CPU{}}
	members := [levels]map[int][]int{}
	for l := range members {
		members[l] = map[int][]int{}
	}
	cores := 0
	for _, node := range m.Nodes {
		cores += len(node.Cores)
		for _, core := range node.Cores {
			if len(core.Threads) == 0 {
				return nil, fmt.Errorf("a core of NUMA node %d has no CPUs", node.ID)
			}
			uncore := core.Uncore
			if uncore == NoUncore {
				uncore = core.Socket // as kubelet has it
			}
			place := CPU{NUMA: node.ID, Socket: core.Socket, Uncore: uncore, PhysicalCore: slices.Min(core.Threads)}
			for _, cpu := range core.Threads {
				if _, twice := t.CPUs[cpu]; twice {
					return nil, fmt.Errorf("CPU %d belongs to two cores", cpu)
				}
				t.CPUs[cpu] = place
				for l, id := range place {
					members[l][id] = append(members[l][id], cpu)
				}
			}
		}
	}
	if len(t.CPUs) == 0 {
		return nil, errors.New("could not detect number of cpus") // upstream's words
	}
	for l := range members {
		t.of[l] = map[int]cpuset.CPUSet{}
		t.counts[l] = len(members[l])
		for id, cpus := range members[l] {
			t.of[l][id] = cpuset.New(cpus...)
			t.all = t.all.Union(t.of[l][id])
		}
	}
	t.counts[PhysicalCore] = cores
	return t, nil
}

// All returns all CPUs.
func (t *Topology) All() cpuset.CPUSet { return t.all }

// Count returns how many members a level has.
func (t *Topology) Count(l Level) int { return t.counts[l] }

// In returns the CPUs of one member of a level.
func (t *Topology) In(l Level, id int) cpuset.CPUSet { return t.of[l][id] }

// IDs returns the members of a level, sorted.
func (t *Topology) IDs(l Level) []int {
	out := make([]int, 0, len(t.of[l]))
	for id := range t.of[l] {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// Average returns how many CPUs a member of a level has on the average, rounded down, as kubelet expects all members to have.
func (t *Topology) Average(l Level) int { return len(t.CPUs) / t.counts[l] }

// Span returns the IDs of a level in which a set of CPUs has members, sorted. CPUs that the machine does not have are left out.
func (t *Topology) Span(l Level, cpus cpuset.CPUSet) []int {
	var out []int
	for _, cpu := range cpus.UnsortedList() {
		if place, ok := t.CPUs[cpu]; ok {
			out = append(out, place[l])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
