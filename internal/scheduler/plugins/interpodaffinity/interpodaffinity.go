// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package interpodaffinity is the InterPodAffinity plug-in: pods want to be in one zone, on one host or in another such
// domain with certain pods, or away from them. Required terms say where a pod fits (the terms of pods that are there
// already against newcomers, too), preferred ones where better.
//
// How many pods match the newcomer's terms is counted by node and kept (podcount). The terms of the pods that are there are
// looked through, but only on nodes that have pods with terms.
package interpodaffinity

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// Name is the plug-in's name.
const Name = "InterPodAffinity"

const (
	filterKey fwk.StateKey = "PreFilter" + Name
	scoreKey  fwk.StateKey = "PreScore" + Name
)

// New makes the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	p := &plugin{handle: h}
	if f := h.SharedInformerFactory(); f != nil {
		p.namespaces = f.Core().V1().Namespaces().Lister()
	}
	return p, nil
}

type plugin struct {
	handle     fwk.Handle
	namespaces corelisters.NamespaceLister // nil: namespaces have no labels
	counts     podcount.Counter
}

func (*plugin) Name() string { return Name }

// EventsToRegister says that other pods, and nodes and their labels, may help.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

// afterPod: a pod that one of either's terms is about.
func (p *plugin) afterPod(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	info, err := nodeinfo.NewPodInfo(pod)
	if err != nil {
		return fwk.Queue, err
	}
	mine := p.resolve(append(append([]fwk.AffinityTerm(nil), info.GetRequiredAffinityTerms()...), info.GetRequiredAntiAffinityTerms()...))
	for _, obj := range []any{oldObj, newObj} {
		other, ok := obj.(*corev1.Pod)
		if !ok || other == nil {
			continue
		}
		for i := range mine {
			if mine[i].Matches(other, nil) {
				return fwk.Queue, nil
			}
		}
		theirs, err := nodeinfo.NewPodInfo(other)
		if err != nil {
			return fwk.Queue, err
		}
		for _, t := range theirs.GetRequiredAntiAffinityTerms() {
			if t.Matches(pod, p.labelsOf(pod.Namespace)) {
				return fwk.Queue, nil
			}
		}
	}
	return fwk.QueueSkip, nil
}

func (p *plugin) labelsOf(namespace string) labels.Set {
	if p.namespaces == nil {
		return nil
	}
	ns, err := p.namespaces.Get(namespace)
	if err != nil {
		return nil
	}
	return ns.Labels
}

// resolve turns the namespace selectors of the newcomer's terms into namespaces.
func (p *plugin) resolve(terms []fwk.AffinityTerm) []fwk.AffinityTerm {
	for i := range terms {
		t := &terms[i]
		if t.NamespaceSelector == nil || t.NamespaceSelector.Empty() {
			continue // none, or all: Matches knows
		}
		if _, selectable := t.NamespaceSelector.Requirements(); !selectable || p.namespaces == nil {
			continue
		}
		t.Namespaces = t.Namespaces.Clone()
		if found, err := p.namespaces.List(t.NamespaceSelector); err == nil {
			for _, ns := range found {
				t.Namespaces.Insert(ns.Name)
			}
		}
		t.NamespaceSelector = labels.Nothing()
	}
	return terms
}

// identity names a term's criterion, without its topology.
func identity(t *fwk.AffinityTerm) string {
	all := ""
	if t.NamespaceSelector != nil && t.NamespaceSelector.Empty() {
		all = "*"
	}
	return all + strings.Join(sets.List(t.Namespaces), ",") + "\x00" + t.Selector.String()
}

// matching counts the pods of each node that all the terms match.
func (p *plugin) matching(nodes []fwk.NodeInfo, terms ...fwk.AffinityTerm) []int32 {
	var key strings.Builder
	for i := range terms {
		if _, selectable := terms[i].Selector.Requirements(); !selectable {
			return make([]int32, len(nodes))
		}
		key.WriteString(identity(&terms[i]))
		key.WriteByte(1)
	}
	return p.counts.Count(nodes, key.String(), func(pod *corev1.Pod) bool { return matchesAll(terms, pod) })
}

func matchesAll(terms []fwk.AffinityTerm, pod *corev1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return len(terms) > 0
}

// pair is a domain: a topology key and its value.
type pair struct{ key, value string }

// filterState is how many pods of each domain matter.
type filterState struct {
	pod      *corev1.Pod
	required []fwk.AffinityTerm // the newcomer's
	anti     []fwk.AffinityTerm
	nsLabels labels.Set
	wanted   map[pair]int64 // pods that all required terms match, by the terms' domains
	avoided  map[pair]int64 // pods that an anti-affinity term matches
	against  map[pair]int64 // pods whose anti-affinity terms match the newcomer
}

// Clone copies the counts.
func (s *filterState) Clone() fwk.StateData {
	c := *s
	c.wanted, c.avoided, c.against = maps.Clone(s.wanted), maps.Clone(s.avoided), maps.Clone(s.against)
	return &c
}

func (s *filterState) empty() bool {
	return len(s.required) == 0 && len(s.anti) == 0 && len(s.against) == 0
}

func add(m map[pair]int64, node *corev1.Node, key string, n int64) {
	value, ok := node.Labels[key]
	if !ok || n == 0 {
		return
	}
	k := pair{key, value}
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

// PreFilter counts the domains.
func (p *plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	haveAnti, err := p.handle.SnapshotSharedLister().NodeInfos().HavePodsWithRequiredAntiAffinityList()
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("failed to list NodeInfos with pods with affinity: %w", err)) // upstream's words
	}
	a := pod.Spec.Affinity
	if len(haveAnti) == 0 && (a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	info, err := nodeinfo.NewPodInfo(pod)
	if err != nil {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("parsing pod: %+v", err))
	}
	s := &filterState{
		pod: pod, required: p.resolve(info.GetRequiredAffinityTerms()), anti: p.resolve(info.GetRequiredAntiAffinityTerms()),
		nsLabels: p.labelsOf(pod.Namespace), wanted: map[pair]int64{}, avoided: map[pair]int64{}, against: map[pair]int64{},
	}
	for _, n := range haveAnti {
		for _, other := range n.GetPodsWithRequiredAntiAffinity() {
			s.countAgainst(other, n.Node(), 1)
		}
	}
	if len(s.required) > 0 {
		for k, count := range p.matching(nodes, s.required...) {
			for i := range s.required {
				add(s.wanted, nodes[k].Node(), s.required[i].TopologyKey, int64(count))
			}
		}
	}
	for i := range s.anti {
		for k, count := range p.matching(nodes, s.anti[i]) {
			add(s.avoided, nodes[k].Node(), s.anti[i].TopologyKey, int64(count))
		}
	}
	if s.empty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(filterKey, s)
	return nil, nil
}

func (s *filterState) countAgainst(other fwk.PodInfo, node *corev1.Node, by int64) {
	terms := other.GetRequiredAntiAffinityTerms()
	for i := range terms {
		if terms[i].Matches(s.pod, s.nsLabels) {
			add(s.against, node, terms[i].TopologyKey, by)
		}
	}
}

// PreFilterExtensions keep the counts while pods are put and taken for the sake of argument.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts a pod in.
func (p *plugin) AddPod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, added, node.Node(), 1)
}

// RemovePod counts a pod out.
func (p *plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, removed, node.Node(), -1)
}

func recount(state fwk.CycleState, other fwk.PodInfo, node *corev1.Node, by int64) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	s.countAgainst(other, node, by)
	if matchesAll(s.required, other.GetPod()) {
		for i := range s.required {
			add(s.wanted, node, s.required[i].TopologyKey, by)
		}
	}
	for i := range s.anti {
		if s.anti[i].Matches(other.GetPod(), nil) {
			add(s.avoided, node, s.anti[i].TopologyKey, by)
		}
	}
	return nil
}

// Filter refuses nodes outside of the wanted domains and in the avoided ones.
func (p *plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	node := n.Node()
	if !s.near(node) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules")
	}
	for i := range s.anti {
		if v, ok := node.Labels[s.anti[i].TopologyKey]; ok && s.avoided[pair{s.anti[i].TopologyKey, v}] > 0 {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match pod anti-affinity rules")
		}
	}
	for k := range s.against {
		if v, ok := node.Labels[k.key]; ok && v == k.value {
			return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules")
		}
	}
	return nil
}

// near says whether all wanted pods are in the node's domains. The first pod of a group that wants its own like may go
// anywhere that has the labels.
func (s *filterState) near(node *corev1.Node) bool {
	there := true
	for i := range s.required {
		v, ok := node.Labels[s.required[i].TopologyKey]
		if !ok {
			return false
		}
		there = there && s.wanted[pair{s.required[i].TopologyKey, v}] > 0
	}
	return there || len(s.wanted) == 0 && matchesAll(s.required, s.pod)
}

func read[T any](state fwk.CycleState, key fwk.StateKey) (T, *fwk.Status) {
	v, err := state.Read(key)
	if t, ok := v.(T); err == nil && ok {
		return t, nil
	}
	var zero T
	return zero, fwk.AsStatus(fmt.Errorf("reading %q from cycleState: %w", key, fwk.ErrNotFound))
}
