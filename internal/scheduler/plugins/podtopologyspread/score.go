// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podtopologyspread

import (
	"context"
	"fmt"
	"math"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// scoreState is the input of Score.
type scoreState struct {
	all     []constraint
	domains []map[string]int32       // pods in each domain with a feasible node; nil for constraints over hosts
	hosts   [][]int32                // pods on each node, for constraints over hosts
	slot    func(n fwk.NodeInfo) int // index in hosts
	weight  []float64
	ignored map[string]bool
}

// Clone returns the state itself, which is immutable.
func (s *scoreState) Clone() fwk.StateData { return s }

// PreScore counts the domains of the ScheduleAnyway constraints, or of the defaults.
func (p *plugin) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	all, err := p.constraintsOf(pod, corev1.ScheduleAnyway)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("obtaining pod's soft topology spread constraints: %w", err))
	}
	strict := len(pod.Spec.TopologySpreadConstraints) > 0 || !p.systems
	if len(all) == 0 || len(feasible) == 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("getting all nodes: %w", err))
	}
	s := &scoreState{all: all, domains: make([]map[string]int32, len(all)), hosts: make([][]int32, len(all)),
		weight: make([]float64, len(all)), ignored: map[string]bool{}}
	// Constraints other than the system defaults count only nodes that have all the labels.
	for _, n := range feasible {
		if strict && !hasAll(n.Node(), all) {
			s.ignored[n.Node().Name] = true
		}
	}
	affinity, list := nodeaffinity.GetRequiredNodeAffinity(pod), podcount.NewList(nodes, p.handle.SnapshotSharedLister())
	var labelled []constraint // nodes must have the labels of all of them
	if strict {
		labelled = all
	}
	for i := range all {
		c := &all[i]
		if c.key == corev1.LabelHostname {
			s.hosts[i] = append([]int32(nil), p.matching(list, pod.Namespace, c)...)
			s.weight[i] = math.Log(float64(len(feasible)-len(s.ignored)) + 2)
			continue
		}
		s.domains[i] = map[string]int32{}
		for _, n := range feasible {
			if v, ok := n.Node().Labels[c.key]; ok && !s.ignored[n.Node().Name] {
				s.domains[i][v] = 0
			}
		}
		s.weight[i] = math.Log(float64(len(s.domains[i])) + 2)
		tally := p.tally(list, pod, c, labelled, affinity)
		for v := range s.domains[i] {
			s.domains[i][v] = int32(tally.Sum(podcount.Domain{Key: c.key, Value: v}))
		}
	}
	s.slot = slots(nodes)
	state.Write(scoreKey, s)
	return nil
}

// slots returns a function from a node to its index in nodes. Nodes of a snapshot know their index.
func slots(nodes []fwk.NodeInfo) func(fwk.NodeInfo) int {
	var m map[string]int
	return func(n fwk.NodeInfo) int {
		if s, ok := n.(interface{ Slot() (int, bool) }); ok {
			if slot, ok := s.Slot(); ok {
				return slot
			}
		}
		if m == nil {
			m = make(map[string]int, len(nodes))
			for k, n := range nodes {
				m[n.Node().Name] = k
			}
		}
		return m[n.Node().Name]
	}
}

// Score adds up the counts of the node's domains; less is better.
func (p *plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	s, st := read[*scoreState](state, scoreKey)
	if st != nil {
		return 0, st
	}
	node := n.Node()
	if s.ignored[node.Name] {
		return 0, nil
	}
	score := 0.0
	for i := range s.all {
		value, ok := node.Labels[s.all[i].key]
		if !ok {
			continue
		}
		count := s.domains[i][value]
		if s.hosts[i] != nil {
			count = s.hosts[i][s.slot(n)]
		}
		score += float64(count)*s.weight[i] + float64(s.all[i].maxSkew-1)
	}
	return int64(math.Round(score)), nil
}

// ScoreExtensions returns the plug-in, which converts low counts to high scores.
func (p *plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore scales to 0..100, the emptiest domains best.
func (p *plugin) NormalizeScore(_ context.Context, state fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	s, st := read[*scoreState](state, scoreKey)
	if st != nil {
		return st
	}
	least, most := int64(math.MaxInt64), int64(0)
	for _, n := range scores {
		if !s.ignored[n.Name] {
			least, most = min(least, n.Score), max(most, n.Score)
		}
	}
	for i := range scores {
		switch n := &scores[i]; {
		case s.ignored[n.Name]:
			n.Score = 0
		case most == 0:
			n.Score = fwk.MaxNodeScore
		default:
			n.Score = fwk.MaxNodeScore * (most + least - n.Score) / most
		}
	}
	return nil
}

// owners finds the services and controllers of a pod without constraints of its own.
type owners struct {
	services     corelisters.ServiceLister
	controllers  corelisters.ReplicationControllerLister
	replicaSets  appslisters.ReplicaSetLister
	statefulSets appslisters.StatefulSetLister
}

func newOwners(h fwk.Handle) *owners {
	f := h.SharedInformerFactory()
	if f == nil {
		return nil
	}
	return &owners{
		services: f.Core().V1().Services().Lister(), controllers: f.Core().V1().ReplicationControllers().Lister(),
		replicaSets: f.Apps().V1().ReplicaSets().Lister(), statefulSets: f.Apps().V1().StatefulSets().Lister(),
	}
}

// constraintsOf returns the pod's constraints, or the default ones with the selector of its services and controller.
func (p *plugin) constraintsOf(pod *corev1.Pod, when corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	if len(pod.Spec.TopologySpreadConstraints) > 0 {
		return constraints(pod, pod.Spec.TopologySpreadConstraints, when)
	}
	if p.owners == nil || len(p.defaults) == 0 {
		return nil, nil
	}
	all, err := constraints(pod, p.defaults, when)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	selector := p.owners.selector(pod)
	if selector.Empty() {
		return nil, nil
	}
	for i := range all {
		all[i].selector = selector
	}
	return all, nil
}

// selector joins the selectors of the services that select the pod and of its controller.
func (o *owners) selector(pod *corev1.Pod) labels.Selector {
	joined := labels.Set{}
	if all, err := o.services.Services(pod.Namespace).List(labels.Everything()); err == nil {
		for _, s := range all {
			if len(s.Spec.Selector) > 0 && labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(pod.Labels)) {
				joined = labels.Merge(joined, s.Spec.Selector)
			}
		}
	}
	selector := labels.NewSelector()
	if len(joined) > 0 {
		selector = joined.AsSelector()
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return selector
	}
	var of *metav1.LabelSelector
	switch owner.Kind {
	case "ReplicationController":
		if c, err := o.controllers.ReplicationControllers(pod.Namespace).Get(owner.Name); err == nil {
			of = metav1.SetAsLabelSelector(c.Spec.Selector)
		}
	case "ReplicaSet":
		if c, err := o.replicaSets.ReplicaSets(pod.Namespace).Get(owner.Name); err == nil {
			of = c.Spec.Selector
		}
	case "StatefulSet":
		if c, err := o.statefulSets.StatefulSets(pod.Namespace).Get(owner.Name); err == nil {
			of = c.Spec.Selector
		}
	}
	if of == nil {
		return selector
	}
	if other, err := metav1.LabelSelectorAsSelector(of); err == nil {
		if rs, ok := other.Requirements(); ok {
			selector = selector.Add(rs...)
		}
	}
	return selector
}
