// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package interpodaffinity is the InterPodAffinity plug-in: pods ask to be in the same zone, host or other topology domain as certain pods,
// or in another. Required terms decide where a pod fits (also the anti-affinity terms of existing pods against incoming ones), preferred
// terms where it fits better.
//
// The plug-in adds up by domain, and caches, the number of pods that the incoming pod's terms match, and the results of existing pods'
// terms for pods like it (podcount).
package interpodaffinity

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// Name is the plug-in's name.
const Name = "InterPodAffinity"

const (
	filterKey fwk.StateKey = "PreFilter" + Name
	scoreKey  fwk.StateKey = "PreScore" + Name
)

// New returns the plug-in.
func New(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.InterPodAffinityArgs](Name, args)
	if err != nil {
		return nil, err
	}
	refusal := func(code fwk.Code, why string) *fwk.Status { return fwk.NewStatus(code, why).WithPlugin(Name) }
	p := &plugin{
		handle: h, hardWeight: int64(*a.HardPodAffinityWeight), ignoreOthers: a.IgnorePreferredTermsOfExistingPods,
		far:       refusal(fwk.UnschedulableAndUnresolvable, "node(s) didn't match pod affinity rules"),
		crowded:   refusal(fwk.Unschedulable, "node(s) didn't match pod anti-affinity rules"),
		unwelcome: refusal(fwk.Unschedulable, "node(s) didn't satisfy existing pods anti-affinity rules"),
	}
	if f := h.SharedInformerFactory(); f != nil {
		p.namespaces = f.Core().V1().Namespaces().Lister()
	}
	return p, nil
}

type plugin struct {
	handle     fwk.Handle
	namespaces corelisters.NamespaceLister // nil: namespaces have no labels
	counts     podcount.Counter

	far, crowded, unwelcome *fwk.Status // shared by all rejected pods, immutable

	hardWeight   int64 // the score of an existing pod's required term that matches the incoming pod
	ignoreOthers bool  // do not score pods without preferences by the preferences of others
}

func (*plugin) Name() string { return Name }

// EventsToRegister registers changes of other pods, and of nodes and their labels.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}

// afterPod queues the pod if one of its terms matches the changed pod, or one of that pod's terms matches it.
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

// resolve converts the namespace selectors of the incoming pod's terms to namespaces.
func (p *plugin) resolve(terms []fwk.AffinityTerm) []fwk.AffinityTerm {
	for i := range terms {
		t := &terms[i]
		if t.NamespaceSelector == nil || t.NamespaceSelector.Empty() {
			continue // none, or all: Matches handles both
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

// identity returns a key for a term's criterion, without its topology.
func identity(t *fwk.AffinityTerm) string {
	all := ""
	if t.NamespaceSelector != nil && t.NamespaceSelector.Empty() {
		all = "*"
	}
	if _, selectable := t.Selector.Requirements(); !selectable {
		all += "!" // matches no pod; without this mark it would look like any pod
	}
	return all + strings.Join(sets.List(t.Namespaces), ",") + "\x00" + t.Selector.String()
}

// matching counts the pods that all terms match, by the domains of a topology key.
func (p *plugin) matching(nodes podcount.List, topology string, terms ...fwk.AffinityTerm) *podcount.Tally {
	var key strings.Builder
	key.WriteString(topology)
	for i := range terms {
		key.WriteByte(1)
		key.WriteString(identity(&terms[i]))
	}
	matches := func(pod *corev1.Pod) bool { return matchesAll(terms, pod) }
	return p.counts.Tally(nodes, key.String(), func(n fwk.NodeInfo, add podcount.Share) {
		if count := podcount.Matching(n, matches); count > 0 {
			add(topology, int64(count))
		}
	})
}

// about returns a key for the criterion of existing pods' terms about the incoming pod.
func about(what string, pod *corev1.Pod, nsLabels labels.Set) string {
	return strings.Join([]string{"\x02" + what, pod.Namespace, labels.Set(pod.Labels).String(), nsLabels.String()}, "\x00")
}

// holders returns the nodes whose pods' terms count. If few nodes have such pods, it returns only those, since many incoming pods have
// unique labels (ordinals, indices) and so begin a new tally; otherwise it returns all nodes, which keep their positions when one more node
// gets such a pod.
func holders(have []fwk.NodeInfo, all podcount.List) podcount.List {
	const few = 8
	if len(have) < all.Len()/few {
		return podcount.NewList(have, nil)
	}
	return all
}

func matchesAll(terms []fwk.AffinityTerm, pod *corev1.Pod) bool {
	for i := range terms {
		if !terms[i].Matches(pod, nil) {
			return false
		}
	}
	return len(terms) > 0
}

// filterState is the number of relevant pods in each domain.
type filterState struct {
	pod      *corev1.Pod
	required []fwk.AffinityTerm // the incoming pod's terms
	anti     []fwk.AffinityTerm
	nsLabels labels.Set
	wanted   []podcount.Sums // by required term: pods that match all of them
	avoided  []podcount.Sums // by anti-affinity term: pods that match it
	against  podcount.Sums   // existing pods whose anti-affinity terms match the incoming pod
}

// Clone copies what AddPod and RemovePod change.
func (s *filterState) Clone() fwk.StateData {
	c := *s
	c.wanted, c.avoided, c.against = clones(s.wanted), clones(s.avoided), s.against.Clone()
	return &c
}

func clones(all []podcount.Sums) []podcount.Sums {
	out := make([]podcount.Sums, len(all))
	for i := range all {
		out[i] = all[i].Clone()
	}
	return out
}

func (s *filterState) empty() bool {
	return len(s.required) == 0 && len(s.anti) == 0 && s.against.Zero()
}

// PreFilter counts the domains.
func (p *plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult,
	*fwk.Status) {
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
		nsLabels: p.labelsOf(pod.Namespace),
	}
	list := podcount.NewList(nodes, p.handle.SnapshotSharedLister())
	s.against.Tally = p.counts.Tally(holders(haveAnti, list), about("against", pod, s.nsLabels), func(n fwk.NodeInfo, add podcount.Share) {
		for _, other := range n.GetPodsWithRequiredAntiAffinity() {
			s.keptOutBy(other, add)
		}
	})
	for i := range s.required {
		s.wanted = append(s.wanted, podcount.Sums{Tally: p.matching(list, s.required[i].TopologyKey, s.required...)})
	}
	for i := range s.anti {
		s.avoided = append(s.avoided, podcount.Sums{Tally: p.matching(list, s.anti[i].TopologyKey, s.anti[i])})
	}
	if s.empty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(filterKey, s)
	return nil, nil
}

// keptOutBy adds the domains that an existing pod's anti-affinity forbids for the incoming pod.
func (s *filterState) keptOutBy(other fwk.PodInfo, add podcount.Share) {
	terms := other.GetRequiredAntiAffinityTerms()
	for i := range terms {
		if terms[i].Matches(s.pod, s.nsLabels) {
			add(terms[i].TopologyKey, 1)
		}
	}
}

// PreFilterExtensions returns the plug-in, which updates the counts while preemption adds and removes pods.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod counts an added pod.
func (p *plugin) AddPod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, added fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, added, node.Node(), 1)
}

// RemovePod subtracts a removed pod.
func (p *plugin) RemovePod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, removed fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return recount(state, removed, node.Node(), -1)
}

func recount(state fwk.CycleState, other fwk.PodInfo, node *corev1.Node, by int64) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	add := func(sums *podcount.Sums, key string, n int64) {
		if d, ok := podcount.Of(node, key); ok {
			sums.Add(d, n)
		}
	}
	s.keptOutBy(other, func(key string, n int64) { add(&s.against, key, by*n) })
	if matchesAll(s.required, other.GetPod()) {
		for i := range s.required {
			add(&s.wanted[i], s.required[i].TopologyKey, by)
		}
	}
	for i := range s.anti {
		if s.anti[i].Matches(other.GetPod(), nil) {
			add(&s.avoided[i], s.anti[i].TopologyKey, by)
		}
	}
	return nil
}

// Filter rejects nodes outside of the wanted domains and in the avoided ones.
func (p *plugin) Filter(_ context.Context, state fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	s, st := read[*filterState](state, filterKey)
	if st != nil {
		return st
	}
	if !s.near(n) {
		return p.far
	}
	for i := range s.anti {
		if there, _ := s.avoided[i].At(n, s.anti[i].TopologyKey); there > 0 {
			return p.crowded
		}
	}
	for _, key := range s.against.Keys() {
		if there, _ := s.against.At(n, key); there > 0 {
			return p.unwelcome
		}
	}
	return nil
}

// near reports whether the node's domains have all wanted pods. The first pod of a group whose terms match itself may go to any node with
// the labels.
func (s *filterState) near(n fwk.NodeInfo) bool {
	there := true
	for i := range s.required {
		wanted, ok := s.wanted[i].At(n, s.required[i].TopologyKey)
		if !ok {
			return false
		}
		there = there && wanted > 0
	}
	return there || s.nowhere() && matchesAll(s.required, s.pod)
}

// nowhere reports that no domain has a pod that matches all required terms.
func (s *filterState) nowhere() bool {
	for i := range s.wanted {
		if !s.wanted[i].Zero() {
			return false
		}
	}
	return true
}

func read[T any](state fwk.CycleState, key fwk.StateKey) (T, *fwk.Status) {
	v, err := state.Read(key)
	if t, ok := v.(T); err == nil && ok {
		return t, nil
	}
	var zero T
	return zero, fwk.AsStatus(fmt.Errorf("reading %q from cycleState: %w", key, fwk.ErrNotFound))
}
