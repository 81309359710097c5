// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeunschedulable is the NodeUnschedulable plug-in: a cordoned node takes only pods that tolerate it.
package nodeunschedulable

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "NodeUnschedulable"

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

// EventsToRegister registers new and uncordoned nodes, and tolerations added to the pod.
func (p plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeTaint}, QueueingHintFn: p.afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodToleration}, QueueingHintFn: p.afterPod},
	}, nil
}

func (plugin) afterNode(_ klog.Logger, _ *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	node, ok := newObj.(*corev1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	old, had := oldObj.(*corev1.Node)
	if !node.Spec.Unschedulable && (!had || old == nil || old.Spec.Unschedulable) {
		return fwk.Queue, nil
	}
	return fwk.QueueSkip, nil
}

func (plugin) afterPod(_ klog.Logger, _ *corev1.Pod, _, newObj any) (fwk.QueueingHint, error) {
	if pod, ok := newObj.(*corev1.Pod); ok && !tolerates(pod) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// Filter rejects cordoned nodes.
func (plugin) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	if !node.Node().Spec.Unschedulable || tolerates(pod) {
		return nil
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) were unschedulable")
}

func tolerates(pod *corev1.Pod) bool {
	taint := corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return v1helper.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, &taint, false)
}
