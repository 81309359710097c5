// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package schedulinggates is the SchedulingGates plug-in: it holds a pod with scheduling gates back until the last gate is removed.
package schedulinggates

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "SchedulingGates"

// New returns the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) Name() string { return Name }

// EventsToRegister registers only the removal of the pod's own last gate.
func (plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodSchedulingGatesEliminated}},
	}, nil
}

// PreEnqueue holds back gated pods.
func (plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if len(pod.Spec.SchedulingGates) == 0 {
		return nil
	}
	gates := make([]string, len(pod.Spec.SchedulingGates))
	for i, g := range pod.Spec.SchedulingGates {
		gates[i] = g.Name
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("waiting for scheduling gates: %v", gates))
}
