// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeinfo is the scheduler's state of a node and of the pods on it: [NodeInfo], [PodInfo] and [Resource] implement the interfaces
// of k8s.io/kube-scheduler/framework.
//
// A NodeInfo has a generation, drawn from one counter for all nodes; each change of the node draws the next. Two NodeInfos of equal
// generation are equal, so every result for one holds for the other: the snapshot copies only nodes with a new generation, and the core
// caches verdicts by generation. A NodeInfo in a snapshot does not change any more; [NodeInfo.Snapshot] returns a private copy.
package nodeinfo

import (
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Generations counts the changes of all nodes of one cache.
type Generations struct{ last atomic.Int64 }

func (g *Generations) next() int64 {
	if g == nil {
		return 0
	}
	return g.last.Add(1)
}

// NodeInfo is a node and the pods on it, including the assumed ones. The zero value with a node set is usable.
type NodeInfo struct {
	node                             *corev1.Node
	pods                             []fwk.PodInfo
	withAffinity, withAnti, withZone []fwk.PodInfo
	ports                            fwk.HostPortInfo
	requested, nonZero, allocatable  Resource
	images                           map[string]*fwk.ImageStateSummary
	claims                           map[string]int
	features                         ndf.FeatureSet
	generation                       int64
	generations                      *Generations
	index                            map[types.UID]int // of pods by UID; only while the NodeInfo may change
	slot                             int               // in a snapshot; counts from 1
}

var _ fwk.NodeInfo = (*NodeInfo)(nil)

// New returns the NodeInfo of a node, or of an unknown node (nil) whose pods are known first.
func New(node *corev1.Node, g *Generations) *NodeInfo {
	n := &NodeInfo{generations: g, generation: g.next()}
	if node != nil {
		n.SetNode(node)
	}
	return n
}

// Node and the following methods read the state. Slices and maps are shared: do not change them.
func (n *NodeInfo) Node() *corev1.Node                                          { return n.node }
func (n *NodeInfo) GetPods() []fwk.PodInfo                                      { return n.pods }
func (n *NodeInfo) GetPodsWithAffinity() []fwk.PodInfo                          { return n.withAffinity }
func (n *NodeInfo) GetPodsWithRequiredAntiAffinity() []fwk.PodInfo              { return n.withAnti }
func (n *NodeInfo) GetPodsWithRequiredNonHostScopedAntiAffinity() []fwk.PodInfo { return n.withZone }
func (n *NodeInfo) GetUsedPorts() fwk.HostPortInfo                              { return n.ports }
func (n *NodeInfo) GetRequested() fwk.Resource                                  { return &n.requested }
func (n *NodeInfo) GetNonZeroRequested() fwk.Resource                           { return &n.nonZero }
func (n *NodeInfo) GetAllocatable() fwk.Resource                                { return &n.allocatable }
func (n *NodeInfo) GetImageStates() map[string]*fwk.ImageStateSummary           { return n.images }
func (n *NodeInfo) GetPVCRefCounts() map[string]int                             { return n.claims }
func (n *NodeInfo) GetGeneration() int64                                        { return n.generation }

// Slot returns the node's index in its snapshot, or in the one that it was copied from.
func (n *NodeInfo) Slot() (slot int, ok bool) { return n.slot - 1, n.slot > 0 }

// SetSlot sets the index.
func (n *NodeInfo) SetSlot(slot int) { n.slot = slot + 1 }

// GetNodeDeclaredFeatures returns the features that the node declares.
func (n *NodeInfo) GetNodeDeclaredFeatures() ndf.FeatureSet { return n.features }

// String returns the node's name.
func (n *NodeInfo) String() string {
	name := "<nil>"
	if n.node != nil {
		name = n.node.Name
	}
	return fmt.Sprintf("%s: %d pods, generation %d", name, len(n.pods), n.generation)
}

// Snapshot returns a copy of equal generation. Changes of the copy do not affect the original.
func (n *NodeInfo) Snapshot() fwk.NodeInfo { return n.Copy() }

// Copy is Snapshot with the concrete type.
func (n *NodeInfo) Copy() *NodeInfo {
	c := *n
	c.pods = slices.Clone(n.pods)
	c.withAffinity, c.withAnti, c.withZone = slices.Clone(n.withAffinity), slices.Clone(n.withAnti), slices.Clone(n.withZone)
	c.index = nil
	if len(n.ports) > 0 {
		c.ports = fwk.HostPortInfo{}
		for ip, ports := range n.ports {
			for p := range ports {
				c.ports.Add(ip, p.Protocol, p.Port)
			}
		}
	}
	if len(n.claims) > 0 {
		c.claims = make(map[string]int, len(n.claims))
		for k, v := range n.claims {
			c.claims[k] = v
		}
	}
	return &c
}

// SetNode sets or replaces the node.
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.node = node
	n.allocatable = *NewResource(node.Status.Allocatable)
	n.features = ndf.DefaultFramework.TryMap(node.Status.DeclaredFeatures) // no pod requires unknown features
	n.touch()
}

// SetImages sets the node's images.
func (n *NodeInfo) SetImages(images map[string]*fwk.ImageStateSummary) {
	n.images = images
	n.touch()
}

// RemoveNode removes the node but not its pods, whose deletion events may come later.
func (n *NodeInfo) RemoveNode() {
	n.node = nil
	n.touch()
}

// AddPodInfo adds a pod.
func (n *NodeInfo) AddPodInfo(p fwk.PodInfo) {
	if n.index != nil {
		n.index[p.GetPod().UID] = len(n.pods)
	}
	n.pods = append(n.pods, p)
	if info, ok := p.(*PodInfo); !ok || info.terms().whole {
		if len(p.GetRequiredAffinityTerms())+len(p.GetRequiredAntiAffinityTerms())+len(p.GetPreferredAffinityTerms())+
			len(p.GetPreferredAntiAffinityTerms()) > 0 {
			n.withAffinity = append(n.withAffinity, p)
		}
		if terms := p.GetRequiredAntiAffinityTerms(); len(terms) > 0 {
			n.withAnti = append(n.withAnti, p)
			if slices.ContainsFunc(terms, func(t fwk.AffinityTerm) bool { return t.TopologyKey != corev1.LabelHostname }) {
				n.withZone = append(n.withZone, p)
			}
		}
	}
	n.account(p, 1)
	n.touch()
}

// RemovePod removes the pod with that UID.
func (n *NodeInfo) RemovePod(_ klog.Logger, pod *corev1.Pod) error { return n.Remove(pod) }

// Remove removes the pod with that UID.
func (n *NodeInfo) Remove(pod *corev1.Pod) error {
	if n.index == nil {
		n.index = make(map[types.UID]int, len(n.pods))
		for i, p := range n.pods {
			n.index[p.GetPod().UID] = i
		}
	}
	i, ok := n.index[pod.UID]
	if !ok {
		return fmt.Errorf("remove pod: %s/%s is not on node %v", pod.Namespace, pod.Name, n)
	}
	p, last := n.pods[i], len(n.pods)-1
	n.pods[i] = n.pods[last]
	n.index[n.pods[i].GetPod().UID] = i
	n.pods[last] = nil
	n.pods = n.pods[:last]
	delete(n.index, pod.UID)
	same := func(x fwk.PodInfo) bool { return x.GetPod().UID == pod.UID }
	n.withAffinity = slices.DeleteFunc(n.withAffinity, same)
	n.withAnti = slices.DeleteFunc(n.withAnti, same)
	n.withZone = slices.DeleteFunc(n.withZone, same)
	n.account(p, -1)
	n.touch()
	return nil
}

func (n *NodeInfo) account(p fwk.PodInfo, sign int64) {
	r := p.CalculateResource()
	if exact, ok := r.Resource.(*Resource); ok {
		n.requested.add(exact, sign)
	}
	n.nonZero.MilliCPU += sign * r.Non0CPU
	n.nonZero.Memory += sign * r.Non0Mem
	pod := p.GetPod()
	for _, port := range hostPorts(p) {
		if n.ports == nil {
			n.ports = fwk.HostPortInfo{}
		}
		if sign > 0 {
			n.ports.Add(port.HostIP, string(port.Protocol), port.HostPort)
		} else {
			n.ports.Remove(port.HostIP, string(port.Protocol), port.HostPort)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim == nil {
			continue
		}
		if n.claims == nil {
			n.claims = map[string]int{}
		}
		key := pod.Namespace + "/" + v.PersistentVolumeClaim.ClaimName
		if n.claims[key] += int(sign); n.claims[key] <= 0 {
			delete(n.claims, key)
		}
	}
}

func hostPorts(p fwk.PodInfo) []corev1.ContainerPort {
	if info, ok := p.(*PodInfo); ok {
		return info.ports
	}
	info := &PodInfo{}
	for i := range p.GetPod().Spec.Containers {
		info.addPorts(&p.GetPod().Spec.Containers[i])
	}
	return info.ports
}

func (n *NodeInfo) touch() {
	if n.generations == nil {
		n.generation++
		return
	}
	n.generation = n.generations.next()
}
