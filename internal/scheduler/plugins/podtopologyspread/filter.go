// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podtopologyspread

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// filterState is, for each constraint, the number of matching pods in each domain.
type filterState struct {
	all      []constraint
	domains  []podcount.Sums
	least    []int64 // the minimum over the domains of each constraint
	self     []int64 // 1: the pod matches its own constraint
	affinity nodeaffinity.RequiredNodeAffinity
}

// Clone copies what AddPod and RemovePod change.
func (s *filterState) Clone() fwk.StateData {
	c := *s
	c.domains = make([]podcount.Sums, len(s.domains))
	for i, d := range s.domains {
		c.domains[i] = d.Clone()
	}
	c.least = append([]int64(nil), s.least...)
	return &c
}

func (s *filterState) findLeast(i int) {
	s.least[i] = 0
	if s.domains[i].Tally.Len() >= int(s.all[i].minDomains) {
		s.least[i] = s.domains[i].Least()
	}
}

// PreFilter counts the domains of the DoNotSchedule constraints.
func (p *plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult,
	*fwk.Status) {
	all, err := p.constraintsOf(pod, corev1.DoNotSchedule)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("obtaining pod's hard topology spread constraints: %w", err))
	}
	if len(all) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &filterState{
		all: all, domains: make([]podcount.Sums, len(all)), least: make([]int64, len(all)), self: make([]int64, len(all)),
		affinity: nodeaffinity.GetRequiredNodeAffinity(pod),
	}
	list := podcount.NewList(nodes, p.handle.SnapshotSharedLister())
	for i := range all {
		s.domains[i].Tally = p.tally(list, pod, &all[i], all, s.affinity)
		s.findLeast(i)
		if all[i].selector.Matches(labels.Set(pod.Labels)) {
			s.self[i] = 1
		}
	}
	state.Write(filterKey, s)
	return nil, nil
}

// PreFilterExtensions returns the plug-in, which updates the counts while preemption adds and removes pods.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts an added pod.
func (p *plugin) AddPod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, pod, added.GetPod(), node.Node(), 1)
}

// RemovePod subtracts a removed pod.
func (p *plugin) RemovePod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, pod, removed.GetPod(), node.Node(), -1)
}

func recount(state fwk.CycleState, pod, other *corev1.Pod, node *corev1.Node, by int64) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	if other.Namespace != pod.Namespace || other.DeletionTimestamp != nil || !hasAll(node, s.all) {
		return nil
	}
	for i := range s.all {
		c := &s.all[i]
		if c.selector.Matches(labels.Set(other.Labels)) && c.counts(pod, node, s.affinity) {
			s.domains[i].Add(podcount.Domain{Key: c.key, Value: node.Labels[c.key]}, by)
			s.findLeast(i)
		}
	}
	return nil
}

// Filter rejects nodes where the skew would be too great.
func (p *plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	for i := range s.all {
		c := &s.all[i]
		there, ok := s.domains[i].At(n, c.key)
		if !ok {
			return p.unlabelled
		}
		if there-s.least[i]+s.self[i] > int64(c.maxSkew) {
			return p.skewed
		}
	}
	return nil
}

func read[T any](state fwk.CycleState, key fwk.StateKey) (T, *fwk.Status) {
	v, err := state.Read(key)
	if t, ok := v.(T); err == nil && ok {
		return t, nil
	}
	var zero T
	return zero, fwk.AsStatus(fmt.Errorf("reading %q from cycleState: %w", key, fwk.ErrNotFound))
}
