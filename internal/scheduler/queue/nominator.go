// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// nominator knows which pods are to come to which node once room has been made. It is the framework's PodNominator.
type nominator struct {
	mu      sync.RWMutex
	byNode  map[string]nominations
	nodeOf  map[types.UID]string
	changes uint64 // so many there were
	count   atomic.Int64
}

// nominations are a node's. What is in pods is not changed any more.
type nominations struct {
	pods    []fwk.PodInfo
	version uint64 // which of the changes was the last
}

func newNominator() *nominator {
	return &nominator{byNode: map[string]nominations{}, nodeOf: map[types.UID]string{}}
}

// AnyNominated says whether any pod is nominated, without a lock.
func (n *nominator) AnyNominated() bool { return n.count.Load() > 0 }

// AddNominatedPod nominates the pod to the node that info names, or, unless info overrides it, that its status names.
func (n *nominator) AddNominatedPod(_ klog.Logger, pod fwk.PodInfo, info *fwk.NominatingInfo) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(pod.GetPod().UID)
	node := pod.GetPod().Status.NominatedNodeName
	if info.Mode() == fwk.ModeOverride {
		node = info.NominatedNodeName
	}
	if node == "" {
		return
	}
	n.put(node, append(slices.Clip(n.byNode[node].pods), pod))
	n.nodeOf[pod.GetPod().UID] = node
	n.count.Add(1)
}

// DeleteNominatedPodIfExists ends a nomination.
func (n *nominator) DeleteNominatedPodIfExists(pod *corev1.Pod) {
	if !n.AnyNominated() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(pod.UID)
}

func (n *nominator) remove(uid types.UID) {
	node, ok := n.nodeOf[uid]
	if !ok {
		return
	}
	delete(n.nodeOf, uid)
	n.count.Add(-1)
	n.put(node, slices.DeleteFunc(slices.Clone(n.byNode[node].pods), func(p fwk.PodInfo) bool { return p.GetPod().UID == uid }))
}

func (n *nominator) put(node string, pods []fwk.PodInfo) {
	if n.changes++; len(pods) == 0 {
		delete(n.byNode, node)
		return
	}
	n.byNode[node] = nominations{pods, n.changes}
}

// UpdateNominatedPod takes over a pod's newest form. A nomination that only the scheduler knows of so far is kept.
func (n *nominator) UpdateNominatedPod(logger klog.Logger, old *corev1.Pod, pod fwk.PodInfo) {
	var info *fwk.NominatingInfo
	if n.AnyNominated() && old.Status.NominatedNodeName == "" && pod.GetPod().Status.NominatedNodeName == "" {
		n.mu.RLock()
		if node, ok := n.nodeOf[old.UID]; ok {
			info = &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node}
		}
		n.mu.RUnlock()
	}
	if info == nil && !n.AnyNominated() && pod.GetPod().Status.NominatedNodeName == "" {
		return
	}
	n.AddNominatedPod(logger, pod, info)
}

// NominatedPodsForNode are the pods nominated to a node.
func (n *nominator) NominatedPodsForNode(node string) []fwk.PodInfo {
	pods, _ := n.Nominations(node)
	return slices.Clone(pods)
}

// Nominations are the pods nominated to a node, shared and read-only, and a number that no other set of them has.
func (n *nominator) Nominations(node string) (pods []fwk.PodInfo, version uint64) {
	if !n.AnyNominated() {
		return nil, 0
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	on := n.byNode[node]
	return on.pods, on.version
}
