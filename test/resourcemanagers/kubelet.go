// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// kubelet is kubelet's side: its own managers, with no containers.
type kubelet struct {
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	memory   memorymanager.Manager

	mu   sync.Mutex // kubelet reconciles in a goroutine of its own
	pods map[types.UID]*corev1.Pod
}

// newKubelet starts the managers with some active pods.
func newKubelet(ctx context.Context, s settings, pods []*corev1.Pod) (*kubelet, error) {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(s.gates); err != nil {
		return nil, err
	}
	k := &kubelet{pods: map[types.UID]*corev1.Pod{}}
	for _, p := range pods {
		k.pods[p.UID] = p
	}
	log, machine := klog.Logger{}, info(s.machine)
	var err error
	if k.topology, err = topologymanager.NewManager(log, machine.Topology, s.topology, s.scope, s.topologyOptions); err != nil {
		return nil, err
	}
	k.cpus, err = cpumanager.NewManager(log, s.cpu, s.cpuOptions, time.Hour, machine, s.reservedCPUs, s.reserved, s.dir, k.topology)
	if err != nil {
		return nil, err
	}
	var reserved []kubeletconfig.MemoryReservation
	for _, r := range s.reservedMemory {
		reserved = append(reserved, kubeletconfig.MemoryReservation{NumaNode: r.NumaNode, Limits: r.Limits})
	}
	if k.memory, err = memorymanager.NewManager(log, s.memory, machine, s.reserved, reserved, s.dir, k.topology); err != nil {
		return nil, err
	}
	k.topology.AddHintProvider(log, k.cpus)
	k.topology.AddHintProvider(log, k.memory)
	if err := k.cpus.Start(ctx, k.active, allReady{}, noStatus{}, noRuntime{}, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	return k, k.memory.Start(ctx, k.active, allReady{}, noStatus{}, noRuntime{}, containermap.NewContainerMap())
}

func (k *kubelet) active() []*corev1.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []*corev1.Pod
	for _, p := range k.pods {
		out = append(out, p)
	}
	return out
}

func (k *kubelet) admit(ctx context.Context, pod *corev1.Pod) verdict {
	k.mu.Lock()
	k.pods[pod.UID] = pod
	k.mu.Unlock()
	result := k.topology.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
	if result.Admit {
		return verdict{}
	}
	k.remove(pod.UID)
	return verdict{result.Reason, result.Message}
}

// remove ends a pod. The managers notice with their next allocation or hint.
func (k *kubelet) remove(uid types.UID) {
	k.mu.Lock()
	delete(k.pods, uid)
	k.mu.Unlock()
	nothing := &corev1.Pod{}
	k.cpus.GetPodTopologyHints(klog.Logger{}, nothing, lifecycle.AddOperation)
	k.memory.GetPodTopologyHints(klog.Logger{}, nothing, lifecycle.AddOperation)
}

type allReady struct{}

func (allReady) AddSource(string) {}
func (allReady) AllReady() bool   { return true }

type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (corev1.PodStatus, bool) { return corev1.PodStatus{}, false }

type noRuntime struct{}

func (noRuntime) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}
