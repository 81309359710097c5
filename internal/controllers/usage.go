// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
)

// Scaling is what the controller of HorizontalPodAutoscalers works with beside the API.
type Scaling struct {
	Log    *scalinglog.Log // takes its decisions; nil: they are not recorded
	Usage  PodUsage        // nil: the usage of pods is only asked for, and its changes are not told
	Scales Scales          // nil: scales are only asked for
}

// Scales reads scales without requests, where the API server is in this process.
type Scales interface {
	// Scale returns the scale of an object as the API would; nil: the API has to be asked.
	Scale(ctx context.Context, of schema.GroupVersionResource, namespace, name string) *autoscalingv1.Scale
}

// PodUsage reads what pods use without requests, and tells when they use more or less than before (docs/decisions/0016), where
// metrics.k8s.io is built in.
type PodUsage interface {
	// Read returns at once what pods use, as metrics.k8s.io would; nil: the API has to be asked, as another server answers, or the pods' nodes
	// have to be measured first. The pods are of any phase, also without a node; they are only read.
	Read(pods []*corev1.Pod) *metricsv1beta1.PodMetricsList
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
