// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
)

// Scaling is what the controller of HorizontalPodAutoscalers works with beside the API.
type Scaling struct {
	Log   *scalinglog.Log // takes its decisions; nil: they are not recorded
	Usage PodUsage        // nil: changes of the usage of pods are not told
}

// PodUsage tells controllers when pods use more or less than before (docs/decisions/0016).
type PodUsage interface {
	// Watch begins a watch in place of the one of that key; a nil watch ends that.
	Watch(key types.NamespacedName, of *UsageWatch)
}

// UsageWatch asks to be told when some pods together use more or less than they do when the watch begins.
type UsageWatch struct {
	Pods   []*corev1.Pod // of any phase, also without a node; they are only read, before Watch returns
	Bounds []UsageBound
	Wake   func() // is called at most once, when the usage leaves one of the bounds; it must not block
}

// UsageBound is a range of the usage of a resource by all pods of a watch together, in multiples of the usage when the watch begins.
type UsageBound struct {
	Resource  corev1.ResourceName // cpu or memory
	Container string              // of each pod; empty: all of its containers
	Low, High float64             // both from 0 to +Inf
}
