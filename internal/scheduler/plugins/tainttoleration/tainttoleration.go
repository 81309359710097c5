// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package tainttoleration is the TaintToleration plug-in: a pod fits a node whose NoSchedule and NoExecute taints it tolerates, and fits
// better the fewer PreferNoSchedule taints it does not tolerate.
package tainttoleration

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Name is the plug-in's name.
const Name = "TaintToleration"

// New returns the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) Name() string { return Name }

// NodeLocal promises that verdicts may be cached.
func (plugin) NodeLocal() {}

// SignPod signs the tolerations.
func (plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.TolerationsSignerName, Value: pod.Spec.Tolerations}}, nil
}

// EventsToRegister registers nodes whose taints the pod now tolerates, and tolerations added to the pod.
func (p plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint}, QueueingHintFn: p.afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodToleration}},
	}, nil
}

func (plugin) afterNode(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	node, ok := newObj.(*corev1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	was := true
	if old, ok := oldObj.(*corev1.Node); ok && old != nil {
		was = untolerated(old.Spec.Taints, pod.Spec.Tolerations)
	}
	if was && !untolerated(node.Spec.Taints, pod.Spec.Tolerations) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func untolerated(taints []corev1.Taint, tolerations []corev1.Toleration) bool {
	for i := range taints {
		if t := &taints[i]; t.Effect != corev1.TaintEffectPreferNoSchedule &&
			!v1helper.TolerationsTolerateTaint(klog.Logger{}, tolerations, t, false) {
			return true
		}
	}
	return false
}

// Filter rejects nodes with an untolerated taint.
func (plugin) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	taints := node.Node().Spec.Taints
	if len(taints) == 0 || !untolerated(taints, pod.Spec.Tolerations) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) had untolerated taint(s)")
}

// Score counts the untolerated PreferNoSchedule taints.
func (plugin) Score(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	taints := node.Node().Spec.Taints
	if len(taints) == 0 {
		return 0, nil
	}
	var soft []corev1.Toleration
	for _, t := range pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			soft = append(soft, t)
		}
	}
	var n int64
	for i := range taints {
		if t := &taints[i]; t.Effect == corev1.TaintEffectPreferNoSchedule && !v1helper.TolerationsTolerateTaint(klog.Logger{}, soft, t, false) {
			n++
		}
	}
	return n, nil
}

// ScoreExtensions returns the plug-in, which converts many taints to a low score.
func (p plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// Scale scales scores to 0 to 100.
func (plugin) Scale(scores []int64) { profile.ScaleReverse(scores) }

// NormalizeScore scales to 0..100, fewest taints best.
func (p plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	profile.Normalize(scores, p)
	return nil
}
