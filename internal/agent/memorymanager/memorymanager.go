// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package memorymanager reserves memory and huge pages of NUMA nodes for containers, as kubelet's memory manager does.
//
//	memorymanager.go  the Manager: the seam's calls, and the state file
//	static.go         the static policy: which container has how much of which NUMA nodes
//	pod.go            pods with pod-level resources
//	hints.go          which NUMA nodes can give memory
//	reserved.go       reservedMemory
//	migrate.go        takes over the state of another policy, machine or reservation
//
// With the policy None, containers may use the memory of all nodes, and all calls return at once.
package memorymanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/durable"
)

// Config configures a Manager. All fields but ReservedMemory are required.
type Config struct {
	Policy         string // None or Static
	Machine        cputopology.Machine
	Reserved       corev1.ResourceList // by the node: for the system, for itself, and by eviction thresholds
	ReservedMemory []configv1beta1.MemoryReservation
	GateOn         func(gate string) bool
	Dir            string // the node's root directory
	Metrics        *resourcemetrics.Metrics
	Logger         *slog.Logger
}

// Manager assigns memory. It implements the seam's interfaces.
type Manager struct {
	c    Config
	path string

	mu     sync.Mutex
	policy *static // nil: the policy None
	state  state.State
}

// New reads the state file, and makes the manager. State that does not fit the configuration or the machine is migrated. Errors of the
// configuration are kubelet's.
func New(c Config) (*Manager, error) {
	m := &Manager{c: c, path: filepath.Join(c.Dir, state.FileName)}
	switch c.Policy {
	case configv1beta1.NoneMemoryManagerPolicy:
	case configv1beta1.StaticMemoryManagerPolicy:
		reserved, err := readReserved(c.Machine, c.Reserved, c.ReservedMemory)
		if err != nil {
			return nil, err
		}
		m.policy = &static{machine: c.Machine, reserved: reserved, podLevel: c.GateOn("PodLevelResourceManagers"), metrics: c.Metrics,
			state: &m.state, reusable: map[string]map[containermanager.NUMANodes]amounts{}}
	default:
		return nil, fmt.Errorf("unknown policy: %q", c.Policy)
	}
	return m, m.restore()
}

// restore reads the state file and migrates its state.
func (m *Manager) restore() error {
	text, err := os.ReadFile(m.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read memory assignments: %w", err)
	}
	old := state.State{Policy: m.c.Policy}
	if err == nil {
		if old, err = state.Decode(text); err != nil {
			aside := m.path + ".corrupt"
			m.c.Logger.Warn("The file of memory assignments cannot be read: the memory of containers that run is not reserved", "path", m.path,
				"err", err, "kept", aside)
			if err := durable.Write(aside, 0o600, text); err != nil {
				return fmt.Errorf("keep corrupt memory assignments: %w", err)
			}
			old = state.State{Policy: m.c.Policy}
		}
	}
	m.state = m.adopt(old)
	if text == nil && m.policy == nil || text != nil && reflect.DeepEqual(old.Clone(), m.state.Clone()) {
		return nil
	}
	return m.write()
}

func (m *Manager) write() error {
	text, err := state.Encode(m.state)
	if err != nil {
		return err
	}
	if err := durable.Write(m.path, 0o600, text); err != nil {
		return fmt.Errorf("write memory assignments: %w", err)
	}
	return nil
}

// TopologyHints returns from which NUMA nodes a container or a pod can have its memory.
func (m *Manager) TopologyHints(r containermanager.Request) map[string][]containermanager.TopologyHint {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.policy.hints(r.Pod, r.Container)
}

// Allocate assigns memory to a container. It is idempotent.
func (m *Manager) Allocate(_ context.Context, r containermanager.Request) error {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	return m.change(func() error { return m.policy.allocate(r.Pod, r.Container, r.Affinity) })
}

// AllocatePod assigns memory to a pod with pod-level resources, and to its containers. It is idempotent.
func (m *Manager) AllocatePod(_ context.Context, r containermanager.Request) error {
	if m.policy == nil || r.Operation != containermanager.Add {
		return nil
	}
	return m.change(func() error { return m.policy.allocatePod(r.Pod, r.Affinity) })
}

// Release takes a pod's memory back.
func (m *Manager) Release(_ context.Context, pod types.UID) error {
	if m.policy == nil {
		return nil
	}
	return m.change(func() error {
		m.policy.release(string(pod))
		return nil
	})
}

// change changes the state, and writes it before the caller acts on it. A state that cannot be written does not change.
func (m *Manager) change(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.state.Clone()
	err := do()
	if err == nil && !reflect.DeepEqual(before, m.state.Clone()) {
		err = m.write()
	}
	if err != nil {
		m.state = before
	}
	return err
}

// AddOptions adds the NUMA nodes of a container's memory. Init containers before it have ended: their memory is free again.
func (m *Manager) AddOptions(_ context.Context, pod *corev1.Pod, c *corev1.Container, to *containermanager.Options) error {
	if m.policy == nil {
		return nil
	}
	uid := string(pod.UID)
	err := m.change(func() error {
		for _, before := range podshare.Containers(pod) {
			if before.Name == c.Name {
				break
			}
			if podshare.RunsOnce(pod, before) {
				m.policy.remove(uid, before.Name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var nodes []string
	for _, node := range m.nodes(uid, c.Name) {
		nodes = append(nodes, strconv.Itoa(node))
	}
	to.MemoryNodes = strings.Join(nodes, ",")
	return nil
}

// nodes returns the NUMA nodes of a container's memory, sorted; none: all.
func (m *Manager) nodes(pod, container string) []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []int
	for _, b := range m.state.Containers[pod][container] {
		out = append(out, b.NUMAAffinity...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Assigned returns a container's memory; nil: it has none of its own.
func (m *Manager) Assigned(pod types.UID, container string) []state.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Clone().Containers[string(pod)][container]
}

// OfPod returns the memory of a pod with pod-level resources.
func (m *Manager) OfPod(pod types.UID) []state.Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.Clone().Pods[string(pod)].MemoryBlocks
}

// Allocatable returns the memory of each NUMA node that containers can have, used or not.
func (m *Manager) Allocatable() []state.Block {
	if m.policy == nil {
		return nil
	}
	var out []state.Block
	for _, node := range m.c.Machine.Nodes {
		sizes := amounts{}
		for name, t := range m.policy.empty()[node.ID].MemoryMap {
			sizes[name] = t.Allocatable
		}
		out = append(out, blocksOf(containermanager.NUMAMask(node.ID), sizes)...)
	}
	return out
}
