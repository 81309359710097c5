// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeaffinity is the NodeAffinity plug-in: a pod's node selector and required node affinity say where it fits, its
// preferred node affinity where better.
package nodeaffinity

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Name is the plug-in's name.
const Name = "NodeAffinity"

const (
	requiredKey  fwk.StateKey = "PreFilter" + Name
	preferredKey fwk.StateKey = "PreScore" + Name
)

// New makes the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) Name() string { return Name }

// NodeLocal promises that verdicts may be kept.
func (plugin) NodeLocal() {}

type required struct {
	nodeaffinity.RequiredNodeAffinity
}

func (r required) Clone() fwk.StateData { return r }

type preferred struct {
	*nodeaffinity.PreferredSchedulingTerms
}

func (p preferred) Clone() fwk.StateData { return p }

// SignPod signs selector and affinity.
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

// EventsToRegister says that a node may help that is new or newly labelled and matches.
func (p plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}, QueueingHintFn: p.afterNode},
	}, nil
}

func (plugin) afterNode(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	node, ok := newObj.(*corev1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	want := nodeaffinity.GetRequiredNodeAffinity(pod)
	now, err := want.Match(node)
	if err != nil {
		return fwk.Queue, err
	}
	if !now {
		return fwk.QueueSkip, nil
	}
	if old, ok := oldObj.(*corev1.Node); ok && old != nil {
		if was, err := want.Match(old); err != nil || was {
			return fwk.QueueSkip, err
		}
	}
	return fwk.Queue, nil
}

// PreFilter compiles the terms, and where every term names nodes says which.
func (plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	terms := requiredTerms(pod)
	if terms == nil && pod.Spec.NodeSelector == nil {
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

// PreFilterExtensions is nil: other pods do not matter.
func (plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter matches the node.
func (plugin) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	want, ok := read[required](state, requiredKey)
	if !ok {
		want = required{nodeaffinity.GetRequiredNodeAffinity(pod)}
	}
	// A term that cannot be read matches nothing.
	if match, _ := want.Match(node.Node()); match {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")
}

// PreScore compiles the preferences.
func (plugin) PreScore(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	terms, err := preferences(pod)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if terms == nil {
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
func (plugin) Score(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	want, ok := read[preferred](state, preferredKey)
	if !ok {
		terms, err := preferences(pod)
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		want = preferred{terms}
	}
	if want.PreferredSchedulingTerms == nil {
		return 0, nil
	}
	return want.PreferredSchedulingTerms.Score(node.Node()), nil
}

// ScoreExtensions scales to the best node.
func (p plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore scales to 0..100.
func (plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	profile.Normalize(scores)
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
