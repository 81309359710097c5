// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/componentconfig"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cpumanager"
	cpustate "github.com/mortise-dev/mortise/internal/agent/cpumanager/state"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/memorymanager"
	memorystate "github.com/mortise-dev/mortise/internal/agent/memorymanager/state"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/topologymanager"
)

// exclusive are the managers of exclusive CPUs and memory; all nil: the node has none.
type exclusive struct {
	cpus     *cpumanager.Manager
	memory   *memorymanager.Manager
	topology *topologymanager.Policy // nil: the policy none
}

// wantsExclusive reports whether a policy is set, or was: then its state must be migrated.
func (n *node) wantsExclusive() bool {
	k := n.Kubelet
	if k.CPUManagerPolicy != cpumanager.PolicyNone || k.MemoryManagerPolicy != configv1beta1.NoneMemoryManagerPolicy ||
		k.TopologyManagerPolicy != configv1beta1.NoneTopologyManagerPolicy || len(k.CPUManagerPolicyOptions) > 0 {
		return true
	}
	for _, name := range []string{cpustate.FileName, memorystate.FileName} {
		if _, err := os.Stat(filepath.Join(n.Host.RootDir, name)); err == nil {
			return true
		}
	}
	return false
}

// makeExclusive makes the managers that the kubelet configuration asks for.
func (n *node) makeExclusive() (x exclusive, err error) {
	if !n.wantsExclusive() {
		return x, nil
	}
	k := n.Kubelet
	machine, err := cputopology.Read(os.DirFS(n.Host.SysFS))
	if err != nil {
		return x, fmt.Errorf("read topology of machine: %w", err)
	}
	places, err := cputopology.New(machine)
	if err != nil {
		return x, fmt.Errorf("read topology of machine: %w", err)
	}
	named, err := cpuset.Parse(k.ReservedSystemCPUs)
	if err != nil {
		return x, fmt.Errorf("read reserved processors: %w", err)
	}
	gate := func(name string) bool { return componentconfig.GateOn(k.FeatureGates, name) }
	if x.topology, err = topologymanager.New(topologymanager.Config{
		Policy: k.TopologyManagerPolicy, Scope: k.TopologyManagerScope, Options: k.TopologyManagerPolicyOptions, Machine: machine,
		PodLevel: gate("PodLevelResourceManagers"),
	}); err != nil {
		return x, fmt.Errorf("make topology manager: %w", err)
	}
	if x.cpus, err = cpumanager.New(cpumanager.Config{
		Policy: k.CPUManagerPolicy, PolicyOptions: k.CPUManagerPolicyOptions, Topology: places, TopologyPolicy: k.TopologyManagerPolicy,
		ReservedCPUs: named, Reserved: n.resources.Reserved(corev1.ResourceCPU), GateOn: gate, Dir: n.Host.RootDir,
		Retry: k.CPUManagerReconcilePeriod.Duration, Runtime: pinning{n.cri}, Metrics: n.Metrics.exclusive, Clock: n.Clock, Logger: n.Logger,
	}); err != nil {
		return x, fmt.Errorf("make CPU manager: %w", err)
	}
	if x.memory, err = memorymanager.New(memorymanager.Config{
		Policy: k.MemoryManagerPolicy, Machine: machine, Reserved: n.reservedMemory(), ReservedMemory: k.ReservedMemory, GateOn: gate,
		Dir: n.Host.RootDir, Metrics: n.Metrics.exclusive, Logger: n.Logger,
	}); err != nil {
		return x, fmt.Errorf("make memory manager: %w", err)
	}
	return x, nil
}

// reservedMemory returns the memory that is not for pods: reserved, or below the hard eviction threshold.
func (n *node) reservedMemory() corev1.ResourceList {
	q := n.resources.Reserved(corev1.ResourceMemory)
	for _, t := range n.resources.Thresholds {
		if t.Hard() && t.Signal == evict.MemoryAvailable {
			q.Add(t.Value.Of(n.resources.Machine.Memory))
		}
	}
	return corev1.ResourceList{corev1.ResourceMemory: q}
}

// policy returns the topology policy for the seam.
func (x exclusive) policy() containermanager.Topology {
	if x.topology == nil {
		return nil
	}
	return x.topology
}

// rows returns the managers' rows for the table.
func (x exclusive) rows() []containermanager.Row {
	var out []containermanager.Row
	if x.cpus != nil {
		out = append(out, containermanager.Row{Name: "CPU manager", Hints: x.cpus, Allocator: x.cpus, Options: x.cpus, Status: x.cpus,
			Releaser: x.cpus, Describer: cpumanager.Describer{Manager: x.cpus}, Run: x.cpus.Run})
	}
	if x.memory != nil {
		out = append(out, containermanager.Row{Name: "memory manager", Hints: x.memory, Allocator: x.memory, Options: x.memory,
			Releaser: x.memory, Describer: x.memory})
	}
	return out
}

// pinned reports whether a container, or a pod, has CPUs of its own.
func (x exclusive) pinned(pod *corev1.Pod, c *corev1.Container) bool {
	return x.cpus != nil && x.cpus.Pinned(pod, c)
}

// pinning moves containers of the runtime to other CPUs.
type pinning struct{ runtime *cri.Client }

// Containers lists the created and running containers of pods.
func (p pinning) Containers(ctx context.Context) ([]cpumanager.Container, error) {
	list, err := p.runtime.Runtime.ListContainers(cri.Quiet(ctx), nil)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	var out []cpumanager.Container
	for _, c := range list {
		pod := c.Labels[podstate.LabelPodUID]
		if pod != "" && (c.State == runtimeapi.ContainerState_CONTAINER_RUNNING || c.State == runtimeapi.ContainerState_CONTAINER_CREATED) {
			out = append(out, cpumanager.Container{ID: c.Id, Pod: pod, Name: c.Labels[podstate.LabelContainerName]})
		}
	}
	return out, nil
}

// SetCPUs moves a container to other CPUs. One that has ended meanwhile needs none.
func (p pinning) SetCPUs(ctx context.Context, id, cpus string) error {
	err := p.runtime.Runtime.UpdateContainerResources(cri.Quiet(ctx), id, &runtimeapi.ContainerResources{
		Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: cpus},
	})
	if err == nil || cri.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("set CPUs of container: %w", err)
}
