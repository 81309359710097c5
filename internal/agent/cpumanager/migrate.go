// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/cpumanager/state"
	"github.com/mortise-dev/mortise/internal/durable"
)

// restore reads the state file and migrates its state. kubelet refuses to start with a state of another policy, of another reservation, of
// a machine with other CPUs, or with a corrupt one, and asks to drain the node. Here the containers keep what they can, and the log says
// for each what it loses.
func (m *Manager) restore() error {
	text, err := os.ReadFile(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read CPU assignments: %w", err)
	}
	old := state.State{Policy: m.c.Policy}
	if err == nil {
		if old, err = state.Decode(text); err != nil {
			aside := m.path + ".corrupt"
			m.c.Logger.Warn("The file of CPU assignments cannot be read: containers that run keep their CPUs until others need them",
				"path", m.path, "err", err, "kept", aside)
			if err := durable.Write(aside, 0o600, text); err != nil {
				return fmt.Errorf("keep corrupt CPU assignments: %w", err)
			}
			old = state.State{Policy: m.c.Policy}
		}
	}
	if m.policy == nil {
		m.state = state.State{Policy: PolicyNone}
		if m.loosen(old); m.widening() || text == nil {
			return nil // until the containers are moved, the file is the static policy's
		}
		return m.write()
	}
	m.state = m.policy.adopt(old, func(pod, container, change string) {
		m.c.Logger.Warn("A container cannot keep its CPUs", "podUID", pod, "containerName", container, "change", change,
			"policy", m.c.Policy, "formerPolicy", old.Policy)
	})
	m.policy.measure()
	if equal(m.state, old) && text != nil {
		return nil
	}
	return m.write()
}

// loosen notes that the containers of the static policy get all CPUs.
func (m *Manager) loosen(old state.State) {
	if old.Policy != PolicyStatic || old.Shared.IsEmpty() {
		return
	}
	m.former = true
	for _, pod := range slices.Sorted(maps.Keys(old.Containers)) {
		for _, name := range slices.Sorted(maps.Keys(old.Containers[pod])) {
			m.c.Logger.Warn("The policy none has no exclusive CPUs: the container shares all CPUs from now on", "podUID", pod,
				"containerName", name, "formerCPUs", old.Containers[pod][name].String(), "formerPolicy", old.Policy)
		}
	}
}

// widening reports whether containers of a former static policy have yet to get all CPUs.
func (m *Manager) widening() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.former
}

// widened notes that they have got them.
func (m *Manager) widened() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.former = false
	return m.write()
}

// adopt returns the state as it is under the policy: containers keep their CPUs, but for those that do not exist, are reserved, or belong
// to two pods. For these they get others, and only if there are none, they share. It tells about each container that loses some.
func (p *static) adopt(old state.State, tell func(pod, container, message string)) state.State {
	out := state.State{Policy: PolicyStatic, Shared: p.usable(), Containers: state.Assignments{}, Pods: map[string]cpuset.CPUSet{}}
	own := p.state
	p.state = &out
	defer func() { p.state = own }()
	var moving []string // the UIDs of pods that cannot keep all
	have, good := map[string]cpuset.CPUSet{}, map[string]cpuset.CPUSet{}
	for _, pod := range slices.Sorted(maps.Keys(old.Containers)) {
		have[pod] = old.Pods[pod]
		for _, cpus := range old.Containers[pod] {
			have[pod] = have[pod].Union(cpus)
		}
		good[pod] = have[pod].Intersection(p.available())
		if !good[pod].Equals(have[pod]) {
			moving = append(moving, pod)
			if p.options.FullPhysicalCPUsOnly {
				good[pod] = cpuset.New() // in place of parts of cores, other whole ones
			}
		}
		out.Shared = out.Shared.Difference(good[pod])
		maps.Copy(mapOf(&out, pod), old.Containers[pod])
		if cpus, ok := old.Pods[pod]; ok {
			out.Pods[pod] = cpus
		}
	}
	for _, pod := range moving {
		if !p.move(pod, good[pod], have[pod].Difference(good[pod]), tell) {
			out.Shared = out.Shared.Union(good[pod])
			delete(out.Containers, pod)
			delete(out.Pods, pod)
		}
	}
	return out
}

func mapOf(s *state.State, pod string) map[string]cpuset.CPUSet {
	s.Containers[pod] = map[string]cpuset.CPUSet{}
	return s.Containers[pod]
}

// move gives a pod other CPUs for the lost ones; containers of the pod that had a CPU together have its successor together. It returns
// false if there are none.
func (p *static) move(pod string, kept, lost cpuset.CPUSet, tell func(pod, container, message string)) bool {
	others, err := p.take(p.available(), lost.Size())
	containers := p.state.Containers[pod]
	if err != nil {
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			tell(pod, name, fmt.Sprintf("The container had CPUs %s, of which it can keep %q, and no others are free: it shares CPUs until its "+
				"pod is created anew", containers[name], containers[name].Intersection(kept)))
		}
		return false
	}
	p.state.Shared = p.state.Shared.Difference(others)
	successor := map[int]int{}
	for i, cpu := range lost.List() {
		successor[cpu] = others.List()[i]
	}
	follow := func(cpus cpuset.CPUSet) cpuset.CPUSet {
		var now []int
		for _, cpu := range cpus.List() {
			if next, moves := successor[cpu]; moves {
				cpu = next
			}
			now = append(now, cpu)
		}
		return cpuset.New(now...)
	}
	for _, name := range slices.Sorted(maps.Keys(containers)) {
		before := containers[name]
		if containers[name] = follow(before); !before.Equals(containers[name]) {
			tell(pod, name, fmt.Sprintf("The container moves from CPUs %s to %s: some are reserved now, do not exist, or belong to another pod",
				before, containers[name]))
		}
	}
	if cpus, ok := p.state.Pods[pod]; ok {
		p.state.Pods[pod] = follow(cpus)
	}
	return true
}
