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

// nominator records which pods are nominated to which node. It implements the framework's PodNominator.
type nominator struct {
	mu      sync.RWMutex
	byNode  map[string]nominations
	nodeOf  map[types.UID]string
	changes uint64 // the number of changes
	count   atomic.Int64
}

// nominations are a node's nominated pods. The slice pods is immutable.
type nominations struct {
	pods    []fwk.PodInfo
	version uint64 // the value of changes at its last change
}

func newNominator() *nominator {
	return &nominator{byNode: map[string]nominations{}, nodeOf: map[types.UID]string{}}
}

// AnyNominated reports whether any pod is nominated, without a lock.
func (n *nominator) AnyNominated() bool { return n.count.Load() > 0 }

// AddNominatedPod nominates the pod to the node in info or, unless info overrides it, in the pod's status.
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

// DeleteNominatedPodIfExists removes a nomination.
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

// UpdateNominatedPod replaces a nominated pod by its newest version. It keeps a nomination that only the scheduler knows so far.
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

// NominatedPodsForNode returns the pods nominated to a node.
func (n *nominator) NominatedPodsForNode(node string) []fwk.PodInfo {
	pods, _ := n.Nominations(node)
	return slices.Clone(pods)
}

// Nominations returns the pods nominated to a node, shared and read-only, and a number that no other set of them has.
func (n *nominator) Nominations(node string) (pods []fwk.PodInfo, version uint64) {
	if !n.AnyNominated() {
		return nil, 0
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	on := n.byNode[node]
	return on.pods, on.version
}
