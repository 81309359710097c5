// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is version v1alpha1 of config.mortise.dev: the configuration files of Mortise.
//
// It has two kinds: [ServerConfiguration] holds every setting of `mortise up`, and package internal/config reads it;
// [SimulatedNodes] describes simulated nodes, and [ParseSimulatedNodes] reads it. A file holds one object. Both kinds are read
// strictly: unknown fields, duplicate fields and invalid values are errors, and all errors of a file are reported together.
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names of the group and its version.
const (
	Group   = "config.mortise.dev"
	Version = "v1alpha1"
)

// SimulatedNodesKind is the kind of [SimulatedNodes].
const SimulatedNodesKind = "SimulatedNodes"

// SimulatedNodes says which simulated nodes there are, and how their pods fare.
type SimulatedNodes struct {
	metav1.TypeMeta `json:",inline"`
	// Groups are the nodes, in groups that are alike.
	Groups []NodeGroup `json:"groups"`
	// Pods is how long pods take in each phase, on nodes of groups that say nothing else.
	Pods PodPhases `json:"pods,omitempty"`
}

// NodeGroup is nodes that are alike.
type NodeGroup struct {
	// NamePrefix is what their names begin with: PREFIX-0, PREFIX-1 …
	NamePrefix string `json:"namePrefix"`
	// Count is how many there are; 1 if it is not set.
	Count *int32 `json:"count,omitempty"`
	// Capacity is what each has, over 32 CPUs, 256Gi of memory, 1Ti of ephemeral storage and 110 pods; extended resources too.
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Allocatable is what of it pods may take up, where that is less.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Labels, Annotations and Taints are the nodes'.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Taints      []corev1.Taint    `json:"taints,omitempty"`
	// Zones are given to the nodes one after the other, as the label topology.kubernetes.io/zone; Region to all of them.
	Zones  []string `json:"zones,omitempty"`
	Region string   `json:"region,omitempty"`
	// Pods is how long pods take in each phase here. What it does not set is as for all groups.
	Pods PodPhases `json:"pods,omitempty"`
}

// PodPhases is how long pods take in each phase, to the second, and what they use. What is not set takes no time, but for Completes.
type PodPhases struct {
	// Starts is from when the node has the pod until its containers run.
	Starts *metav1.Duration `json:"starts,omitempty"`
	// Ready is from then until they are ready.
	Ready *metav1.Duration `json:"ready,omitempty"`
	// Completes is how long containers of Jobs run whose command does not say it: 1s if it is not set.
	Completes *metav1.Duration `json:"completes,omitempty"`
	// Usage is the CPU and the memory that each container uses all the time, unless annotations of its pod say otherwise: 1m and 1Mi if it
	// is not set.
	Usage corev1.ResourceList `json:"usage,omitempty"`
}
