// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeaffinity is the NodeAffinity plug-in: a pod's node selector and required node affinity decide where it fits, its preferred
// node affinity where it fits better.
package nodeaffinity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Name is the plug-in's name.
const Name = "NodeAffinity"

const (
	requiredKey  fwk.StateKey = "PreFilter" + Name
	preferredKey fwk.StateKey = "PreScore" + Name
)

// New returns the plug-in. Its arguments may add an affinity to that of every pod.
func New(_ context.Context, args runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.NodeAffinityArgs](Name, args)
	if err != nil {
		return nil, err
	}
	var p plugin
	if a.AddedAffinity == nil {
		return p, nil
	}
	if s := a.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; s != nil {
		if p.required, err = nodeaffinity.NewNodeSelector(s); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity.requiredDuringSchedulingIgnoredDuringExecution: %w", err) // upstream's words
		}
	}
	if terms := a.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		if p.preferred, err = nodeaffinity.NewPreferredSchedulingTerms(terms); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity.preferredDuringSchedulingIgnoredDuringExecution: %w", err) // upstream's words
		}
	}
	return p, nil
}

type plugin struct {
	required  *nodeaffinity.NodeSelector             // added to every pod's; nil: none
	preferred *nodeaffinity.PreferredSchedulingTerms // likewise
}

func (plugin) Name() string { return Name }

// NodeLocal promises that verdicts may be cached.
func (plugin) NodeLocal() {}

type required struct {
	nodeaffinity.RequiredNodeAffinity
}

func (r required) Clone() fwk.StateData { return r }

type preferred struct {
	*nodeaffinity.PreferredSchedulingTerms
}

func (p preferred) Clone() fwk.StateData { return p }

// SignPod signs the node selector and affinity.
func (plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	var affinity *corev1.NodeAffinity
	if pod.Spec.Affinity != nil {
		affinity = pod.Spec.Affinity.NodeAffinity
	}
	return []fwk.SignFragment{
		{Key: fwk.NodeAffinitySignerName, Value: affinity},
		{Key: fwk.NodeSelectorSignerName, Value: pod.Spec.NodeSelector},
	}, nil
}

// EventsToRegister registers new and relabelled nodes that match.
func (p plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}, QueueingHintFn: p.afterNode},
	}, nil
}

func (p plugin) afterNode(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	node, ok := newObj.(*corev1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	if p.required != nil && !p.required.Match(node) {
		return fwk.QueueSkip, nil
	}
	want := nodeaffinity.GetRequiredNodeAffinity(pod)
	matches, err := want.Match(node)
	if err != nil {
		return fwk.Queue, err
	}
	if !matches {
		return fwk.QueueSkip, nil
	}
	if old, ok := oldObj.(*corev1.Node); ok && old != nil {
		if was, err := want.Match(old); err != nil || was && (p.required == nil || p.required.Match(old)) {
			return fwk.QueueSkip, err
		}
	}
	return fwk.Queue, nil
}

// PreFilter compiles the terms. If every term selects nodes by name, it returns those nodes.
func (p plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	terms := requiredTerms(pod)
	if terms == nil && pod.Spec.NodeSelector == nil && p.required == nil {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(requiredKey, required{nodeaffinity.GetRequiredNodeAffinity(pod)})
	if terms == nil || len(terms.NodeSelectorTerms) == 0 {
		return nil, nil
	}
	names := sets.New[string]()
	for _, t := range terms.NodeSelectorTerms {
		var of sets.Set[string]
		for _, f := range t.MatchFields {
			if f.Key != metav1.ObjectNameField || f.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if of == nil {
				of = sets.New(f.Values...)
			} else {
				of = of.Intersection(sets.New(f.Values...))
			}
		}
		if of == nil {
			return nil, nil // this term can match any node
		}
		names = names.Union(of)
	}
	if len(names) == 0 {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod affinity terms conflict")
	}
	return &fwk.PreFilterResult{NodeNames: names}, nil
}

func requiredTerms(pod *corev1.Pod) *corev1.NodeSelector {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// PreFilterExtensions returns nil: other pods have no effect.
func (plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter matches the node.
func (p plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	if p.required != nil && !p.required.Match(node.Node()) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match scheduler-enforced node affinity") // upstream's words
	}
	want, ok := read[required](state, requiredKey)
	if !ok {
		want = required{nodeaffinity.GetRequiredNodeAffinity(pod)}
	}
	// A term that cannot be parsed matches no node.
	if match, _ := want.Match(node.Node()); match {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")
}

// PreScore compiles the preferences.
func (p plugin) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	terms, err := preferences(pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if terms == nil && p.preferred == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(preferredKey, preferred{terms})
	return nil
}

func preferences(pod *corev1.Pod) (*nodeaffinity.PreferredSchedulingTerms, error) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil ||
		pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution == nil {
		return nil, nil
	}
	return nodeaffinity.NewPreferredSchedulingTerms(pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
}

// Score sums the weights of the preferences that the node meets.
func (p plugin) Score(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	want, ok := read[preferred](state, preferredKey)
	if !ok {
		terms, err := preferences(pod)
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		want = preferred{terms}
	}
	var score int64
	if p.preferred != nil {
		score = p.preferred.Score(node.Node())
	}
	if want.PreferredSchedulingTerms != nil {
		score += want.PreferredSchedulingTerms.Score(node.Node())
	}
	return score, nil
}

// ScoreExtensions returns the plug-in, which scales scores by the best node's.
func (p plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// Scale scales scores to 0 to 100.
func (plugin) Scale(scores []int64) { profile.Scale(scores) }

// NormalizeScore scales to 0..100.
func (p plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	profile.Normalize(scores, p)
	return nil
}

func read[T fwk.StateData](state fwk.CycleState, key fwk.StateKey) (T, bool) {
	v, err := state.Read(key)
	if err != nil {
		var zero T
		return zero, false
	}
	t, ok := v.(T)
	return t, ok
}
