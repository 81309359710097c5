// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package interpodaffinity

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// scoreState is the weight of the domains, by the incoming pod's terms and by existing pods' terms.
type scoreState struct {
	own    []weighed
	others *podcount.Tally
}

// weighed is the number of pods that a term matches, and the weight of each.
type weighed struct {
	key    string
	weight int64
	tally  *podcount.Tally
}

// Clone returns the state itself, which is immutable.
func (s *scoreState) Clone() fwk.StateData { return s }

// PreScore weighs the domains by the preferred terms of the incoming pod and of existing pods.
func (p *plugin) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	if len(feasible) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	lister := p.handle.SnapshotSharedLister()
	withTerms, err := lister.NodeInfos().HavePodsWithAffinityList()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("list nodes with pods with affinity: %w", err))
	}
	a := pod.Spec.Affinity
	if len(withTerms) == 0 && (a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil) {
		return fwk.NewStatus(fwk.Skip)
	}
	info, err := nodeinfo.NewPodInfo(pod)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("parsing pod: %w", err))
	}
	if p.ignoreOthers && len(info.GetPreferredAffinityTerms())+len(info.GetPreferredAntiAffinityTerms()) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	nodes, err := lister.NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("list nodes: %w", err))
	}
	list := podcount.NewList(nodes, lister)
	s := &scoreState{}
	p.weigh(s, list, info.GetPreferredAffinityTerms(), 1)
	p.weigh(s, list, info.GetPreferredAntiAffinityTerms(), -1)
	nsLabels := p.labelsOf(pod.Namespace)
	s.others = p.counts.Tally(holders(withTerms, list), about("others", pod, nsLabels), func(n fwk.NodeInfo, add podcount.Share) {
		for _, other := range n.GetPodsWithAffinity() {
			weighOther(other, pod, nsLabels, p.hardWeight, add)
		}
	})
	if s.others.NonZero() == 0 && !slices.ContainsFunc(s.own, func(w weighed) bool { return w.weight != 0 && w.tally.NonZero() > 0 }) {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(scoreKey, s)
	return nil
}

func (p *plugin) weigh(s *scoreState, nodes podcount.List, terms []fwk.WeightedAffinityTerm, sign int64) {
	for i := range terms {
		term := p.resolve([]fwk.AffinityTerm{terms[i].AffinityTerm})[0]
		s.own = append(s.own, weighed{term.TopologyKey, sign * int64(terms[i].Weight), p.matching(nodes, term.TopologyKey, term)})
	}
}

// weighOther adds the weights that an existing pod's terms give its domains for the incoming pod.
func weighOther(other fwk.PodInfo, pod *corev1.Pod, nsLabels labels.Set, hardWeight int64, add podcount.Share) {
	required := other.GetRequiredAffinityTerms()
	for i := range required {
		if hardWeight > 0 && required[i].Matches(pod, nsLabels) {
			add(required[i].TopologyKey, hardWeight)
		}
	}
	for _, terms := range []struct {
		of   []fwk.WeightedAffinityTerm
		sign int64
	}{{other.GetPreferredAffinityTerms(), 1}, {other.GetPreferredAntiAffinityTerms(), -1}} {
		for i := range terms.of {
			if terms.of[i].Matches(pod, nsLabels) {
				add(terms.of[i].TopologyKey, terms.sign*int64(terms.of[i].Weight))
			}
		}
	}
}

// Score adds up the weights of the node's domains.
func (p *plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := read[*scoreState](state, scoreKey)
	if st != nil {
		return 0, st
	}
	var score int64
	for i := range s.own {
		there, _ := s.own[i].tally.At(n, s.own[i].key)
		score += s.own[i].weight * there
	}
	for _, key := range s.others.Keys() {
		there, _ := s.others.At(n, key)
		score += there
	}
	return score, nil
}

// ScoreExtensions returns the plug-in, which scales scores, since they may be negative.
func (p *plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore scales the span of the scores to 0..100.
func (p *plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	profile.Normalize(scores, p)
	return nil
}

// Scale is NormalizeScore for scores alone.
func (*plugin) Scale(scores []int64) {
	if len(scores) == 0 {
		return
	}
	least, most := slices.Min(scores), slices.Max(scores)
	for i, n := range scores {
		if most == least {
			scores[i] = 0
			continue
		}
		scores[i] = int64(float64(fwk.MaxNodeScore) * (float64(n-least) / float64(most-least)))
	}
}
