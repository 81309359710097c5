// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package state is the file memory_manager_state in kubelet's format: which container has how much memory of which NUMA nodes. kubelet 1.37
// reads what Encode writes, and Decode reads what kubelet has written since 1.21. It is pure.
//
// The names of this package and of its types are kubelet's: the checksum in the file depends on them.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/checksum"
)

// FileName is the file's name below the node's root directory.
const FileName = "memory_manager_state"

// mostBytes is the largest file that Decode reads.
const mostBytes = 64 << 20

// ErrCorrupt is returned for a file whose checksum is wrong.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// MemoryTable is the memory of one kind of a NUMA node, in bytes.
type MemoryTable struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"` // the total without reserved memory, and of plain memory without huge pages
	Reserved       uint64 `json:"reserved"`    // for containers
	Free           uint64 `json:"free"`
}

// NUMANodeState is the memory of a NUMA node.
type NUMANodeState struct {
	NumberOfAssignments int                                  `json:"numberOfAssignments"` // of blocks that include the node
	MemoryMap           map[corev1.ResourceName]*MemoryTable `json:"memoryMap"`
	Cells               []int                                `json:"cells"` // the group of nodes that give memory together; of one: itself
}

// NUMANodeMap is the memory of a machine, by NUMA node.
type NUMANodeMap map[int]*NUMANodeState

// Block is memory of one kind from a group of NUMA nodes.
type Block struct {
	NUMAAffinity []int               `json:"numaAffinity"`
	Type         corev1.ResourceName `json:"type"`
	Size         uint64              `json:"size"` // bytes
}

// ContainerMemoryAssignments is the memory of containers, by pod UID and container name.
type ContainerMemoryAssignments map[string]map[string][]Block

// PodEntry is the memory of a pod with pod-level resources.
type PodEntry struct {
	MemoryBlocks []Block `json:"memoryBlocks,omitempty"`
}

// PodMemoryAssignments is the memory of pods with pod-level resources, by UID.
type PodMemoryAssignments map[string]PodEntry

// State is the content of the file.
type State struct {
	Policy     string
	Machine    NUMANodeMap
	Containers ContainerMemoryAssignments
	Pods       PodMemoryAssignments
}

// Clone returns a copy.
func (s State) Clone() State {
	out := State{Policy: s.Policy, Machine: NUMANodeMap{}, Containers: ContainerMemoryAssignments{}, Pods: PodMemoryAssignments{}}
	for id, node := range s.Machine {
		next := &NUMANodeState{NumberOfAssignments: node.NumberOfAssignments, MemoryMap: map[corev1.ResourceName]*MemoryTable{},
			Cells: slices.Clone(node.Cells)}
		for name, table := range node.MemoryMap {
			copied := *table
			next.MemoryMap[name] = &copied
		}
		out.Machine[id] = next
	}
	for pod, containers := range s.Containers {
		for name, blocks := range containers {
			out.Set(pod, name, cloneBlocks(blocks))
		}
	}
	for pod, entry := range s.Pods {
		out.Pods[pod] = PodEntry{cloneBlocks(entry.MemoryBlocks)}
	}
	return out
}

func cloneBlocks(blocks []Block) []Block {
	out := slices.Clone(blocks)
	for i := range out {
		out[i].NUMAAffinity = slices.Clone(out[i].NUMAAffinity)
	}
	return out
}

// Set notes a container's memory.
func (s *State) Set(pod, container string, blocks []Block) {
	if s.Containers == nil {
		s.Containers = ContainerMemoryAssignments{}
	}
	if s.Containers[pod] == nil {
		s.Containers[pod] = map[string][]Block{}
	}
	s.Containers[pod][container] = blocks
}

// Delete forgets a container's memory.
func (s *State) Delete(pod, container string) {
	delete(s.Containers[pod], container)
	if len(s.Containers[pod]) == 0 {
		delete(s.Containers, pod)
	}
}

// MemoryManagerCheckpoint is the part of the file that kubelets before 1.37 read.
type MemoryManagerCheckpoint struct {
	PolicyName   string                     `json:"policyName"`
	MachineState NUMANodeMap                `json:"machineState"`
	Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
	Checksum     checksum.Checksum          `json:"checksum"`
}

// file is the whole file. Kubelet 1.37 reads Data only.
type file struct {
	MemoryManagerCheckpoint
	Data         string            `json:"data"`
	DataChecksum checksum.Checksum `json:"dataChecksum"`
}

// data is what the field Data holds.
type data struct {
	PolicyName   string                     `json:"policyName"`
	MachineState NUMANodeMap                `json:"machineState"`
	Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
	PodEntries   PodMemoryAssignments       `json:"podEntries,omitempty"`
}

// Encode returns the content of the file.
func Encode(s State) ([]byte, error) {
	s = s.Clone()
	text, err := json.Marshal(data{PolicyName: s.Policy, MachineState: s.Machine, Entries: s.Containers, PodEntries: s.Pods})
	if err != nil {
		return nil, fmt.Errorf("encode memory assignments: %w", err)
	}
	f := file{
		MemoryManagerCheckpoint: MemoryManagerCheckpoint{PolicyName: s.Policy, MachineState: s.Machine, Entries: s.Containers},
		Data:                    string(text), DataChecksum: checksum.Of(string(text)),
	}
	f.Checksum = checksum.Of(&f.MemoryManagerCheckpoint)
	out, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode memory assignments: %w", err)
	}
	return out, nil
}

// Decode reads the content of the file. A wrong checksum is ErrCorrupt; anything else that is no state of memory is an error too.
func Decode(text []byte) (State, error) {
	if len(text) > mostBytes {
		return State{}, fmt.Errorf("decode memory assignments: %d bytes; at most %d are read", len(text), mostBytes)
	}
	f := file{MemoryManagerCheckpoint: MemoryManagerCheckpoint{MachineState: NUMANodeMap{}, Entries: ContainerMemoryAssignments{}}}
	if err := json.Unmarshal(text, &f); err != nil {
		return State{}, fmt.Errorf("decode memory assignments: %w", err)
	}
	var d data
	if f.Data != "" || f.DataChecksum != 0 {
		if f.DataChecksum != checksum.Of(f.Data) {
			return State{}, fmt.Errorf("decode memory assignments: %w", ErrCorrupt)
		}
		if err := json.Unmarshal([]byte(f.Data), &d); err != nil {
			return State{}, fmt.Errorf("decode memory assignments: %w", err)
		}
	} else {
		if err := json.Unmarshal(text, &d); err != nil {
			return State{}, fmt.Errorf("decode memory assignments: %w", err)
		}
		if !olderIsRight(f.MemoryManagerCheckpoint, d) {
			return State{}, fmt.Errorf("decode memory assignments: %w", ErrCorrupt)
		}
	}
	return d.state()
}

// olderIsRight checks the checksum of the formats before 1.37: with pod entries (1.36) or without.
func olderIsRight(plain MemoryManagerCheckpoint, d data) bool {
	type MemoryManagerCheckpointV2 struct {
		PolicyName   string
		MachineState NUMANodeMap
		Entries      ContainerMemoryAssignments
		PodEntries   PodMemoryAssignments
		Checksum     checksum.Checksum
	}
	want := plain.Checksum
	plain.Checksum = 0
	if want == 0 || len(d.PodEntries) == 0 && want == checksum.Of(&plain) {
		return true
	}
	pods := d.PodEntries
	if pods == nil {
		pods = PodMemoryAssignments{}
	}
	full := MemoryManagerCheckpointV2{PolicyName: plain.PolicyName, MachineState: plain.MachineState, Entries: plain.Entries, PodEntries: pods}
	return want == checksum.Of(&full, "MemoryManagerCheckpointV2", "MemoryManagerCheckpoint")
}

// mostNodes is the number of NUMA nodes that a policy can tell apart.
const mostNodes = 64

// state checks what the rest of the program relies on.
func (d data) state() (State, error) {
	s := State{Policy: d.PolicyName, Machine: NUMANodeMap{}, Containers: ContainerMemoryAssignments{}, Pods: PodMemoryAssignments{}}
	for id, node := range d.MachineState {
		if id < 0 || id >= mostNodes || node == nil {
			return State{}, fmt.Errorf("decode memory assignments: there is no NUMA node %d", id)
		}
		for name, table := range node.MemoryMap {
			if table == nil {
				return State{}, fmt.Errorf("decode memory assignments: NUMA node %d has no amount of %s", id, name)
			}
		}
		s.Machine[id] = node
	}
	check := func(pod string, blocks []Block) error {
		for _, b := range blocks {
			for _, id := range b.NUMAAffinity {
				if id < 0 || id >= mostNodes {
					return fmt.Errorf("decode memory assignments: pod %s: there is no NUMA node %d", pod, id)
				}
			}
			if len(b.NUMAAffinity) == 0 || len(b.NUMAAffinity) > mostNodes {
				return fmt.Errorf("decode memory assignments: pod %s: a block belongs to %d NUMA nodes", pod, len(b.NUMAAffinity))
			}
		}
		return nil
	}
	for pod, containers := range d.Entries {
		for name, blocks := range containers {
			if err := check(pod, blocks); err != nil {
				return State{}, err
			}
			s.Set(pod, name, blocks)
		}
	}
	for pod, entry := range d.PodEntries {
		if err := check(pod, entry.MemoryBlocks); err != nil {
			return State{}, err
		}
		s.Pods[pod] = entry
	}
	return s, nil
}
