// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Group is a group of equal nodes.
type Group struct {
	NamePrefix string
	Count      int // 0: 1
	// Capacity overrides that of all nodes; Allocatable is the part that pods may use, if that is less.
	Capacity, Allocatable corev1.ResourceList
	Labels, Annotations   map[string]string
	Taints                []corev1.Taint
	// Zones are assigned round-robin; all nodes have the Region.
	Zones  []string
	Region string
	Phases Phases
}

// Phases are the durations of a pod's phases, in whole seconds, and the usage of its containers.
type Phases struct {
	Starts    time.Duration  // until their containers run
	Ready     time.Duration  // from then until they are ready
	Completes *time.Duration // how long containers of Jobs run; nil: a second
	// Usage is the CPU and memory usage of each container, unless its pod declares another.
	Usage corev1.ResourceList
	// SharesCPU makes the CPU usage that of all running pods of one controller together, which share it evenly.
	SharesCPU bool
}

// describe applies the group to the turn-th of its nodes. A guest has no group: its object describes it.
func (g *Group) describe(n *corev1.Node, turn int) {
	if g == nil {
		return
	}
	own := n.Labels
	n.Labels = map[string]string{}
	maps.Copy(n.Labels, g.Labels)
	maps.Copy(n.Labels, own)
	if len(g.Zones) > 0 {
		n.Labels[corev1.LabelTopologyZone] = g.Zones[turn%len(g.Zones)]
	}
	if g.Region != "" {
		n.Labels[corev1.LabelTopologyRegion] = g.Region
	}
	n.Annotations = maps.Clone(g.Annotations)
	n.Spec.Taints = slices.Clone(g.Taints)
}

// phases returns the durations of pods' phases on a node.
func (f *fleet) phases(n *node) Phases {
	if n.group == nil {
		return f.o.Phases
	}
	return n.group.Phases
}
