// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package interpodaffinity

import (
	"context"
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// hardWeight is what a required affinity term of a pod that is there counts towards a newcomer that it matches.
const hardWeight = 1

// scoreState is the weight of each domain, by topology key.
type scoreState struct {
	weights map[pair]int64
	keys    []string // of weights
}

// Clone shares the state: nothing changes it.
func (s *scoreState) Clone() fwk.StateData { return s }

// PreScore weighs the domains by the preferred terms of the newcomer and of those that are there.
func (p *plugin) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	if len(feasible) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	infos := p.handle.SnapshotSharedLister().NodeInfos()
	withTerms, err := infos.HavePodsWithAffinityList()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("list nodes with pods with affinity: %w", err))
	}
	info, err := nodeinfo.NewPodInfo(pod)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("parsing pod: %w", err))
	}
	s := &scoreState{weights: map[pair]int64{}}
	if len(info.GetPreferredAffinityTerms())+len(info.GetPreferredAntiAffinityTerms()) > 0 {
		nodes, err := infos.List()
		if err != nil {
			return fwk.AsStatus(fmt.Errorf("list nodes: %w", err))
		}
		p.weigh(s, nodes, info.GetPreferredAffinityTerms(), 1)
		p.weigh(s, nodes, info.GetPreferredAntiAffinityTerms(), -1)
	}
	nsLabels := p.labelsOf(pod.Namespace)
	for _, n := range withTerms {
		for _, other := range n.GetPodsWithAffinity() {
			s.weighOther(other, pod, nsLabels, n.Node())
		}
	}
	if len(s.weights) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	for k := range s.weights {
		if !slices.Contains(s.keys, k.key) {
			s.keys = append(s.keys, k.key)
		}
	}
	state.Write(scoreKey, s)
	return nil
}

func (p *plugin) weigh(s *scoreState, nodes []fwk.NodeInfo, terms []fwk.WeightedAffinityTerm, sign int64) {
	for i := range terms {
		term := p.resolve([]fwk.AffinityTerm{terms[i].AffinityTerm})[0]
		for k, count := range p.matching(nodes, term) {
			add(s.weights, nodes[k].Node(), term.TopologyKey, sign*int64(terms[i].Weight)*int64(count))
		}
	}
}

func (s *scoreState) weighOther(other fwk.PodInfo, pod *corev1.Pod, nsLabels labels.Set, node *corev1.Node) {
	required := other.GetRequiredAffinityTerms()
	for i := range required {
		if required[i].Matches(pod, nsLabels) {
			add(s.weights, node, required[i].TopologyKey, hardWeight)
		}
	}
	for _, terms := range []struct {
		of   []fwk.WeightedAffinityTerm
		sign int64
	}{{other.GetPreferredAffinityTerms(), 1}, {other.GetPreferredAntiAffinityTerms(), -1}} {
		for i := range terms.of {
			if terms.of[i].Matches(pod, nsLabels) {
				add(s.weights, node, terms.of[i].TopologyKey, terms.sign*int64(terms.of[i].Weight))
			}
		}
	}
}

// Score adds up the node's domains.
func (p *plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := read[*scoreState](state, scoreKey)
	if st != nil {
		return 0, st
	}
	var score int64
	for _, key := range s.keys {
		if v, ok := n.Node().Labels[key]; ok {
			score += s.weights[pair{key, v}]
		}
	}
	return score, nil
}

// ScoreExtensions scale, since scores may be below zero.
func (p *plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore scales the span of the scores to 0..100.
func (p *plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	least, most := int64(math.MaxInt64), int64(math.MinInt64)
	for _, n := range scores {
		least, most = min(least, n.Score), max(most, n.Score)
	}
	for i := range scores {
		if most == least {
			scores[i].Score = 0
			continue
		}
		scores[i].Score = int64(float64(fwk.MaxNodeScore) * (float64(scores[i].Score-least) / float64(most-least)))
	}
	return nil
}
