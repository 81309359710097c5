// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podtopologyspread

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"
)

// filterState is, for each constraint, how many matching pods each domain holds.
type filterState struct {
	all      []constraint
	domains  []map[string]int32
	least    []int32 // over the domains of each constraint
	affinity nodeaffinity.RequiredNodeAffinity
}

// Clone copies what AddPod and RemovePod change.
func (s *filterState) Clone() fwk.StateData {
	c := *s
	c.domains = make([]map[string]int32, len(s.domains))
	for i, d := range s.domains {
		c.domains[i] = maps.Clone(d)
	}
	c.least = append([]int32(nil), s.least...)
	return &c
}

func (s *filterState) findLeast(i int) {
	first := true
	s.least[i] = 0
	if len(s.domains[i]) < int(s.all[i].minDomains) {
		return
	}
	for _, n := range s.domains[i] {
		if first || n < s.least[i] {
			s.least[i], first = n, false
		}
	}
}

// PreFilter counts the domains of the DoNotSchedule constraints.
func (p *plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	all, err := constraints(pod, pod.Spec.TopologySpreadConstraints, corev1.DoNotSchedule)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("obtaining pod's hard topology spread constraints: %w", err))
	}
	if len(all) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &filterState{all: all, domains: make([]map[string]int32, len(all)), least: make([]int32, len(all)), affinity: nodeaffinity.GetRequiredNodeAffinity(pod)}
	for i := range all {
		s.domains[i] = map[string]int32{}
		counts := p.matching(nodes, pod.Namespace, all[i].selector)
		for k, n := range nodes {
			if node := n.Node(); hasAll(node, all) && all[i].counts(pod, node, s.affinity) {
				s.domains[i][node.Labels[all[i].key]] += counts[k]
			}
		}
		s.findLeast(i)
	}
	state.Write(filterKey, s)
	return nil, nil
}

// PreFilterExtensions keep the counts while pods are put and taken for the sake of argument.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts a pod in.
func (p *plugin) AddPod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, pod, added.GetPod(), node.Node(), 1)
}

// RemovePod counts a pod out.
func (p *plugin) RemovePod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, pod, removed.GetPod(), node.Node(), -1)
}

func recount(state fwk.CycleState, pod, other *corev1.Pod, node *corev1.Node, by int32) *fwk.Status {
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
			s.domains[i][node.Labels[c.key]] += by
			s.findLeast(i)
		}
	}
	return nil
}

// Filter refuses nodes where the skew would be too great.
func (p *plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	for i := range s.all {
		c := &s.all[i]
		domain, ok := n.Node().Labels[c.key]
		if !ok {
			return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match pod topology spread constraints (missing required label)")
		}
		skew := s.domains[i][domain] - s.least[i]
		if c.selector.Matches(labels.Set(pod.Labels)) {
			skew++
		}
		if skew > c.maxSkew {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match pod topology spread constraints")
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
