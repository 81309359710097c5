// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-scheduler/framework"
)

// quiet is a scheduler plug-in: pods with the label quiet=true do not go to nodes with the label noisy=true. It imports nothing of Mortise,
// and compiles into a kube-scheduler as it is.
type quiet struct{}

func newQuiet(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
	return quiet{}, nil
}

// Name is what profiles call it.
func (quiet) Name() string { return "Quiet" }

// Filter is called for each node. A plug-in that rejects also names the changes that may help, by EventsToRegister; without, each counts.
func (quiet) Filter(_ context.Context, _ framework.CycleState, pod *corev1.Pod, node framework.NodeInfo) *framework.Status {
	if pod.Labels["quiet"] == "true" && node.Node().Labels["noisy"] == "true" {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable, "node is noisy")
	}
	return nil
}

var _ framework.FilterPlugin = quiet{}
