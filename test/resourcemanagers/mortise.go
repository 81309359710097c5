// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cpumanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/agent/topologymanager"
)

// settings are what a run is about. They are the same for both sides.
type settings struct {
	machine         cputopology.Machine
	topology, scope string
	topologyOptions map[string]string
	cpu             string
	cpuOptions      map[string]string
	reservedCPUs    cpuset.CPUSet
	memory          string
	reserved        corev1.ResourceList
	reservedMemory  []configv1beta1.MemoryReservation
	gates           map[string]bool
	dir             string
}

// verdict is a side's answer about a pod; empty: admitted.
type verdict struct{ Reason, Message string }

// mortise is Mortise's side.
type mortise struct {
	seam   *containermanager.Manager
	cpus   *cpumanager.Manager
	memory *memorymanager.Manager
}

func newMortise(s settings) (*mortise, error) {
	var m mortise
	topology, err := topologymanager.New(topologymanager.Config{
		Policy: s.topology, Scope: s.scope, Options: s.topologyOptions, Machine: s.machine,
		PodLevel: s.gates["PodLevelResourceManagers"],
	})
	if err != nil {
		return nil, err
	}
	places, err := cputopology.New(s.machine)
	if err != nil {
		return nil, err
	}
	metrics := resourcemetrics.New()
	gate := func(name string) bool { return s.gates[name] }
	if m.cpus, err = cpumanager.New(cpumanager.Config{
		Policy: s.cpu, PolicyOptions: s.cpuOptions, Topology: places, TopologyPolicy: s.topology, ReservedCPUs: s.reservedCPUs,
		Reserved: s.reserved[corev1.ResourceCPU], GateOn: gate, Dir: s.dir, Retry: time.Second, Metrics: metrics, Clock: clock.RealClock{},
		Logger: slog.New(slog.DiscardHandler),
	}); err != nil {
		return nil, err
	}
	if m.memory, err = memorymanager.New(memorymanager.Config{
		Policy: s.memory, Machine: s.machine, Reserved: s.reserved, ReservedMemory: s.reservedMemory, GateOn: gate, Dir: s.dir,
		Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
	}); err != nil {
		return nil, err
	}
	var seam containermanager.Topology
	if topology != nil {
		seam = topology
	}
	m.seam = containermanager.New(seam,
		containermanager.Row{Name: "cpu", Hints: m.cpus, Allocator: m.cpus, Options: m.cpus, Releaser: m.cpus},
		containermanager.Row{Name: "memory", Hints: m.memory, Allocator: m.memory, Options: m.memory, Releaser: m.memory})
	return &m, nil
}

func (m *mortise) admit(ctx context.Context, pod *corev1.Pod) verdict {
	err := m.seam.Admit(ctx, pod)
	if reject := (*containermanager.Rejection)(nil); errors.As(err, &reject) {
		_ = m.seam.Release(ctx, pod.UID)
		return verdict{reject.Reason, reject.Message}
	} else if err != nil {
		return verdict{"error", err.Error()}
	}
	return verdict{}
}
