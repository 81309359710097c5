// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodedeclaredfeatures is the plug-in that keeps pods away from nodes which do not declare a feature that the pods need (KEP-5328).
// For example, a pod whose containers all restart when one exits needs a node that declares this.
package nodedeclaredfeatures

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "NodeDeclaredFeatures"

const filterKey fwk.StateKey = "PreFilter" + Name

// New returns the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return &plugin{release: version.MajorMinor(1, 37)}, nil
}

type plugin struct {
	release *version.Version // the nodes' release, all of which have certain features without declaring them
}

func (*plugin) Name() string { return Name }

// needs returns the features that a pod needs.
func (p *plugin) needs(pod *corev1.Pod) (ndf.FeatureSet, error) {
	return ndf.DefaultFramework.InferForPodScheduling(&ndf.PodInfo{Spec: &pod.Spec}, p.release)
}

// SignPod signs the needed features.
func (p *plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	needs, err := p.needs(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	return []fwk.SignFragment{{Key: fwk.FeaturesSignerName, Value: needs.String()}}, nil
}

// EventsToRegister registers new nodes, nodes that declare more, and pods that need less.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeDeclaredFeature}, QueueingHintFn: afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.Update}, QueueingHintFn: p.afterPod},
	}, nil
}

func afterNode(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*corev1.Node)
	node, ok2 := newObj.(*corev1.Node)
	if ok && ok2 && slices.Equal(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func (p *plugin) afterPod(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*corev1.Pod)
	pod, ok2 := newObj.(*corev1.Pod)
	if !ok || !ok2 {
		return fwk.Queue, nil
	}
	before, err := p.needs(old)
	if err != nil {
		return fwk.Queue, err
	}
	after, err := p.needs(pod)
	if err != nil {
		return fwk.Queue, err
	}
	if after.Equal(before) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

type state struct{ needs ndf.FeatureSet }

// Clone returns the state itself, which is immutable.
func (s *state) Clone() fwk.StateData { return s }

// PreFilter skips pods that need no declared features.
func (p *plugin) PreFilter(_ context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	needs, err := p.needs(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if needs.IsEmpty() {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	cycle.Write(filterKey, &state{needs})
	return nil, nil
}

// PreFilterExtensions returns nil: other pods have no effect.
func (*plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects nodes that do not declare all needed features.
func (*plugin) Filter(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := cycle.Read(filterKey)
	if err != nil {
		return fwk.AsStatus(err)
	}
	s, ok := data.(*state)
	if !ok {
		return fwk.AsStatus(errors.New("not the state of " + Name))
	}
	enough, err := s.needs.IsSubset(node.GetNodeDeclaredFeatures())
	if err != nil {
		return fwk.AsStatus(err)
	}
	if !enough {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't match Pod's required features") // upstream's words
	}
	return nil
}
