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

// SimulatedNodes configures simulated nodes and the behaviour of their pods.
type SimulatedNodes struct {
	metav1.TypeMeta `json:",inline"`
	// Groups are the nodes, in groups that are alike.
	Groups []NodeGroup `json:"groups"`
	// Pods sets how long pods take in each phase, on nodes of groups that do not set it.
	Pods PodPhases `json:"pods,omitempty"`
}

// NodeGroup is nodes that are alike.
type NodeGroup struct {
	// NamePrefix is the prefix of the nodes' names: PREFIX-0, PREFIX-1 …
	NamePrefix string `json:"namePrefix"`
	// Count is how many there are; 1 if it is not set.
	Count *int32 `json:"count,omitempty"`
	// Capacity is the capacity of each node, merged over 32 CPUs, 256Gi of memory, 1Ti of ephemeral storage and 110 pods;
	// it may have extended resources.
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// Allocatable is the part of the capacity that pods may use, if it is less.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Labels, Annotations and Taints are the nodes'.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Taints      []corev1.Taint    `json:"taints,omitempty"`
	// Zones are given to the nodes one after the other, as the label topology.kubernetes.io/zone; Region to all of them.
	Zones  []string `json:"zones,omitempty"`
	Region string   `json:"region,omitempty"`
	// Pods sets how long pods take in each phase on these nodes. Unset fields are those of all groups.
	Pods PodPhases `json:"pods,omitempty"`
}

// PodPhases sets how long pods take in each phase, to the second, and their usage. Unset phases take no time, except
// Completes.
type PodPhases struct {
	// Starts is from when the node has the pod until its containers run.
	Starts *metav1.Duration `json:"starts,omitempty"`
	// Ready is from then until they are ready.
	Ready *metav1.Duration `json:"ready,omitempty"`
	// Completes sets how long containers of Jobs run whose command does not determine it: 1s by default.
	Completes *metav1.Duration `json:"completes,omitempty"`
	// Usage is the constant usage of CPU and memory of each container, unless annotations of its pod set it: 1m and 1Mi by
	// default.
	Usage corev1.ResourceList `json:"usage,omitempty"`
	// Load says how the CPU usage follows the number of pods: PerPod by default.
	Load Load `json:"load,omitempty"`
}

// Load says how CPU usage follows the number of pods.
type Load string

const (
	// LoadPerPod is usage that does not depend on other pods.
	LoadPerPod Load = "PerPod"
	// LoadShared is usage of all running pods of one controller together: they share it evenly, so that more pods lower it.
	LoadShared Load = "Shared"
)
