// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package state is the file cpu_manager_state in kubelet's format: which container has which CPUs. kubelet 1.37 reads what Encode writes,
// and Decode reads what kubelet has written since 1.18. It is pure.
//
// The names of this package and of its type CPUManagerCheckpoint are kubelet's: the checksum in the file depends on them.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/checksum"
)

// FileName is the file's name below the node's root directory.
const FileName = "cpu_manager_state"

// mostBytes is the largest file that Decode reads. 10,000 containers need less than 4 MB.
const mostBytes = 64 << 20

// ErrCorrupt is returned for a file whose checksum is wrong.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// Assignments are the CPUs of containers, by pod UID and container name.
type Assignments map[string]map[string]cpuset.CPUSet

// State is the content of the file.
type State struct {
	Policy     string
	Shared     cpuset.CPUSet // of all containers without exclusive CPUs
	Containers Assignments
	Pods       map[string]cpuset.CPUSet // CPUs of pods with pod-level resources, by UID
}

// Clone returns a copy.
func (s State) Clone() State {
	out := State{Policy: s.Policy, Shared: s.Shared, Containers: Assignments{}, Pods: maps.Clone(s.Pods)}
	for pod, containers := range s.Containers {
		out.Containers[pod] = maps.Clone(containers)
	}
	return out
}

// Set notes a container's CPUs.
func (s *State) Set(pod, container string, cpus cpuset.CPUSet) {
	if s.Containers == nil {
		s.Containers = Assignments{}
	}
	if s.Containers[pod] == nil {
		s.Containers[pod] = map[string]cpuset.CPUSet{}
	}
	s.Containers[pod][container] = cpus
}

// Delete forgets a container's CPUs.
func (s *State) Delete(pod, container string) {
	delete(s.Containers[pod], container)
	if len(s.Containers[pod]) == 0 {
		delete(s.Containers, pod)
	}
}

// Assigned returns the CPUs of all containers and pods.
func (s State) Assigned() cpuset.CPUSet {
	out := cpuset.New()
	for _, containers := range s.Containers {
		for _, cpus := range containers {
			out = out.Union(cpus)
		}
	}
	for _, cpus := range s.Pods {
		out = out.Union(cpus)
	}
	return out
}

// CPUManagerCheckpoint is the part of the file that kubelets before 1.37 read.
type CPUManagerCheckpoint struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	Checksum      checksum.Checksum            `json:"checksum"`
}

// file is the whole file. Kubelet 1.37 reads Data only.
type file struct {
	CPUManagerCheckpoint
	Data         string            `json:"data"`
	DataChecksum checksum.Checksum `json:"dataChecksum"`
}

// data is what the field Data holds.
type data struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
	PodEntries    map[string]podEntry          `json:"podEntries,omitempty"`
}

type podEntry struct {
	CPUSet string `json:"cpuSet,omitempty"`
}

// Encode returns the content of the file.
func Encode(s State) ([]byte, error) {
	d := data{
		PolicyName: s.Policy, DefaultCPUSet: s.Shared.String(),
		Entries: map[string]map[string]string{}, PodEntries: map[string]podEntry{},
	}
	for pod, containers := range s.Containers {
		d.Entries[pod] = map[string]string{}
		for name, cpus := range containers {
			d.Entries[pod][name] = cpus.String()
		}
	}
	for pod, cpus := range s.Pods {
		d.PodEntries[pod] = podEntry{cpus.String()}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode CPU assignments: %w", err)
	}
	f := file{
		CPUManagerCheckpoint: CPUManagerCheckpoint{PolicyName: d.PolicyName, DefaultCPUSet: d.DefaultCPUSet, Entries: d.Entries},
		Data:                 string(text), DataChecksum: checksum.Of(string(text)),
	}
	f.Checksum = checksum.Of(&f.CPUManagerCheckpoint)
	out, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode CPU assignments: %w", err)
	}
	return out, nil
}

// Decode reads the content of the file. A wrong checksum is ErrCorrupt; anything else that is no state of CPUs is an error too.
func Decode(text []byte) (State, error) {
	if len(text) > mostBytes {
		return State{}, fmt.Errorf("decode CPU assignments: %d bytes; at most %d are read", len(text), mostBytes)
	}
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		return State{}, fmt.Errorf("decode CPU assignments: %w", err)
	}
	var d data
	if f.Data != "" || f.DataChecksum != 0 {
		if f.DataChecksum != checksum.Of(f.Data) {
			return State{}, fmt.Errorf("decode CPU assignments: %w", ErrCorrupt)
		}
		if err := json.Unmarshal([]byte(f.Data), &d); err != nil {
			return State{}, fmt.Errorf("decode CPU assignments: %w", err)
		}
	} else {
		var err error
		if d, err = older(text, f.CPUManagerCheckpoint); err != nil {
			return State{}, fmt.Errorf("decode CPU assignments: %w", err)
		}
	}
	return d.state()
}

// older reads the formats before 1.37: with pod entries (1.36) or without.
func older(text []byte, plain CPUManagerCheckpoint) (data, error) {
	type PodEntry struct {
		CPUSet cpuset.CPUSet
	}
	type CPUManagerCheckpointV3 struct {
		PolicyName    string
		DefaultCPUSet string
		Entries       map[string]map[string]string
		PodEntries    map[string]PodEntry
		Checksum      checksum.Checksum
	}
	var d data
	if err := json.Unmarshal(text, &d); err != nil {
		return d, err //nolint:wrapcheck // the caller says what was done
	}
	if plain.Checksum == 0 { // files of kubelet 1.18 and before
		return d, nil
	}
	want := plain.Checksum
	plain.Checksum = 0
	if plain.Entries == nil {
		plain.Entries = map[string]map[string]string{}
	}
	if len(d.PodEntries) == 0 && want == checksum.Of(&plain) {
		return d, nil
	}
	full := CPUManagerCheckpointV3{PolicyName: d.PolicyName, DefaultCPUSet: d.DefaultCPUSet, Entries: plain.Entries,
		PodEntries: map[string]PodEntry{}}
	for pod, entry := range d.PodEntries {
		cpus, err := parse(entry.CPUSet)
		if err != nil {
			return d, fmt.Errorf("could not parse cpuset %q of pod %q: %w", entry.CPUSet, pod, err)
		}
		full.PodEntries[pod] = PodEntry{cpus}
	}
	const pods, kubelets = "(map[string]state.PodEntry)", "(state.PodCPUAssignments)"
	for _, names := range [][]string{{pods, kubelets}, {"CPUManagerCheckpointV3", "CPUManagerCheckpoint", pods, kubelets}} {
		if want == checksum.Of(&full, names...) {
			return d, nil
		}
	}
	return d, ErrCorrupt
}

// mostCPUs is more than any kernel supports.
const mostCPUs = 1 << 14

// parse reads a set of CPUs such as 0-3,8. It bounds the numbers: the set of a range such as 0-4000000000 would fill the memory.
func parse(text string) (cpuset.CPUSet, error) {
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '-' }) {
		if n, err := strconv.Atoi(strings.TrimSpace(word)); err != nil {
			return cpuset.New(), fmt.Errorf("read number of CPU: %w", err)
		} else if n >= mostCPUs {
			return cpuset.New(), fmt.Errorf("there is no CPU %d", n)
		}
	}
	return cpuset.Parse(text) //nolint:wrapcheck // the caller names the text
}

func (d data) state() (State, error) {
	s := State{Policy: d.PolicyName, Containers: Assignments{}, Pods: map[string]cpuset.CPUSet{}}
	var err error
	if s.Shared, err = parse(d.DefaultCPUSet); err != nil { // upstream's words, here and below
		return State{}, fmt.Errorf("could not parse default CPU set %q: %w", d.DefaultCPUSet, err)
	}
	for pod, containers := range d.Entries {
		for name, text := range containers {
			cpus, err := parse(text)
			if err != nil {
				return State{}, fmt.Errorf("could not parse cpuset %q for container %q in pod %q: %w", text, name, pod, err)
			}
			s.Set(pod, name, cpus)
		}
	}
	for pod, entry := range d.PodEntries {
		if s.Pods[pod], err = parse(entry.CPUSet); err != nil {
			return State{}, fmt.Errorf("could not parse cpuset %q of pod %q: %w", entry.CPUSet, pod, err)
		}
	}
	return s, nil
}
