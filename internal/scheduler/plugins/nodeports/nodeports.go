// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeports is the NodePorts plug-in: one pod on a node can use a host port.
package nodeports

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "NodePorts"

// New returns the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) Name() string { return Name }

// NodeLocal promises that verdicts may be cached.
func (plugin) NodeLocal() {}

// SignPod signs the host ports.
func (plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: fwk.HostPortsSignerName, Value: hostPorts(pod)}}, nil
}

// EventsToRegister registers new nodes, and the deletion of a pod with one of the ports.
func (p plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}},
	}, nil
}

func (plugin) afterPod(_ klog.Logger, pod *corev1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	gone, ok := oldObj.(*corev1.Pod)
	if !ok {
		return fwk.Queue, nil
	}
	if gone.Spec.NodeName == "" && gone.Status.NominatedNodeName == "" {
		return fwk.QueueSkip, nil
	}
	used := fwk.HostPortInfo{}
	for _, p := range hostPorts(gone) {
		used.Add(p.HostIP, string(p.Protocol), p.HostPort)
	}
	if fits(pod, used) {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// PreFilter skips pods without host ports.
func (plugin) PreFilter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if len(hostPorts(pod)) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	return nil, nil
}

// PreFilterExtensions returns nil: the node's own used ports are enough.
func (plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects nodes where a port is taken.
func (plugin) Filter(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	if fits(pod, node.GetUsedPorts()) {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't have free ports for the requested pod ports")
}

func fits(pod *corev1.Pod, used fwk.HostPortInfo) bool {
	for _, p := range hostPorts(pod) {
		if used.CheckConflict(p.HostIP, string(p.Protocol), p.HostPort) {
			return false
		}
	}
	return true
}

func hostPorts(pod *corev1.Pod) (out []corev1.ContainerPort) {
	take := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				out = append(out, corev1.ContainerPort{HostIP: p.HostIP, Protocol: p.Protocol, HostPort: p.HostPort})
			}
		}
	}
	for i := range pod.Spec.Containers {
		take(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	return out
}
