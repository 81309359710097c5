// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package prioritysort is the PrioritySort plug-in: the queue returns the pod with the highest priority first, and of equals the oldest.
package prioritysort

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "PrioritySort"

// New returns the plug-in.
func New(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin{}, nil }

type plugin struct{}

func (plugin) Name() string { return Name }

// EventsToRegister is empty: the plug-in rejects nothing.
func (plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

// Less orders by priority, then by time.
func (plugin) Less(a, b fwk.QueuedEntityInfo) bool {
	if a.GetPriority() != b.GetPriority() {
		return a.GetPriority() > b.GetPriority()
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}
