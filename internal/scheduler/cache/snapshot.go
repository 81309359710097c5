// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// Snapshot is the cluster at one moment. It is the [fwk.SharedLister] for plug-ins. A node keeps its slot, its index in the list, within
// one epoch.
type Snapshot struct {
	epoch       int64
	list        []fwk.NodeInfo
	generations []int64 // of the nodes of list
	slots       map[string]int
	claims      map[string]int // how many pods use a claim; computed on demand

	listsStale                      bool
	withAffinity, withAnti, withFar []fwk.NodeInfo // by slot
}

var _ fwk.SharedLister = (*Snapshot)(nil)

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot { return &Snapshot{slots: map[string]int{}} }

// Epoch changes when nodes are added or removed, or when image counts change.
func (s *Snapshot) Epoch() int64 { return s.epoch }

// Nodes returns the nodes by slot. The slice is shared.
func (s *Snapshot) Nodes() []fwk.NodeInfo { return s.list }

// Generations returns the nodes' generations by slot. The slice is shared: it lets callers compare many generations without reading each
// node.
func (s *Snapshot) Generations() []int64 { return s.generations }

// Slot returns a node's index in the list.
func (s *Snapshot) Slot(name string) (int, bool) {
	i, ok := s.slots[name]
	return i, ok
}

func (s *Snapshot) reset() {
	clear(s.list)
	s.list, s.generations = s.list[:0], s.generations[:0]
	s.slots = make(map[string]int, len(s.slots))
	s.listsStale, s.claims = true, nil
}

func (s *Snapshot) append(n *nodeinfo.NodeInfo) {
	s.slots[n.Node().Name] = len(s.list)
	n.SetSlot(len(s.list))
	s.list, s.generations = append(s.list, n), append(s.generations, n.GetGeneration())
}

func (s *Snapshot) set(slot int, n *nodeinfo.NodeInfo) {
	n.SetSlot(slot)
	s.list[slot], s.generations[slot] = n, n.GetGeneration()
	s.claims = nil
	if s.listsStale {
		return
	}
	relist(&s.withAffinity, slot, n, len(n.GetPodsWithAffinity()) > 0)
	relist(&s.withAnti, slot, n, len(n.GetPodsWithRequiredAntiAffinity()) > 0)
	relist(&s.withFar, slot, n, len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0)
}

// relist adds the node of a slot to a list at the right place, or removes it.
func relist(list *[]fwk.NodeInfo, slot int, n *nodeinfo.NodeInfo, is bool) {
	at, was := slices.BinarySearchFunc(*list, slot, func(x fwk.NodeInfo, slot int) int {
		there, _ := x.(*nodeinfo.NodeInfo).Slot()
		return there - slot
	})
	switch {
	case is && was:
		(*list)[at] = n
	case is:
		*list = slices.Insert(*list, at, fwk.NodeInfo(n))
	case was:
		*list = slices.Delete(*list, at, at+1)
	}
}

func (s *Snapshot) lists() {
	if !s.listsStale {
		return
	}
	s.withAffinity, s.withAnti, s.withFar, s.listsStale = nil, nil, nil, false
	for _, n := range s.list {
		if len(n.GetPodsWithAffinity()) > 0 {
			s.withAffinity = append(s.withAffinity, n)
		}
		if len(n.GetPodsWithRequiredAntiAffinity()) > 0 {
			s.withAnti = append(s.withAnti, n)
		}
		if len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0 {
			s.withFar = append(s.withFar, n)
		}
	}
}

// NodeInfos returns the lister of nodes.
func (s *Snapshot) NodeInfos() fwk.NodeInfoLister { return (*nodeLister)(s) }

// StorageInfos returns the lister of claims.
func (s *Snapshot) StorageInfos() fwk.StorageInfoLister { return (*claimLister)(s) }

// PodGroupStates and the other group listers are nil: the scheduler does not schedule pod groups as such.
func (s *Snapshot) PodGroupStates() fwk.PodGroupStateLister                   { return nil }
func (s *Snapshot) PodGroups() fwk.PodGroupLister                             { return nil }
func (s *Snapshot) CompositePodGroupStates() fwk.CompositePodGroupStateLister { return nil }
func (s *Snapshot) CompositePodGroups() fwk.CompositePodGroupLister           { return nil }

type nodeLister Snapshot

func (l *nodeLister) List() ([]fwk.NodeInfo, error) { return l.list, nil }

func (l *nodeLister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	(*Snapshot)(l).lists()
	return l.withAffinity, nil
}

func (l *nodeLister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	(*Snapshot)(l).lists()
	return l.withAnti, nil
}

func (l *nodeLister) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	(*Snapshot)(l).lists()
	return l.withFar, nil
}

func (l *nodeLister) Get(name string) (fwk.NodeInfo, error) {
	if i, ok := l.slots[name]; ok {
		return l.list[i], nil
	}
	return nil, fmt.Errorf("nodeinfo not found for node name %q", name)
}

type claimLister Snapshot

// IsPVCUsedByPods reports whether a pod on any node uses the claim "namespace/name".
func (l *claimLister) IsPVCUsedByPods(key string) bool {
	if l.claims == nil {
		l.claims = map[string]int{}
		for _, n := range l.list {
			for k, v := range n.GetPVCRefCounts() {
				l.claims[k] += v
			}
		}
	}
	return l.claims[key] > 0
}
