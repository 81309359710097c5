// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Group is nodes that are alike.
type Group struct {
	NamePrefix string
	Count      int // 0: 1
	// Capacity is laid over the fleet's; Allocatable is what of it pods may take up, where that is less.
	Capacity, Allocatable corev1.ResourceList
	Labels, Annotations   map[string]string
	Taints                []corev1.Taint
	// Zones are assigned round-robin; all nodes have the Region.
	Zones  []string
	Region string
	Phases Phases
}

// Phases is how long pods take in each phase, to the second, and what they use.
type Phases struct {
	Starts    time.Duration  // until their containers run
	Ready     time.Duration  // from then until they are ready
	Completes *time.Duration // how long containers of Jobs run; nil: a second
	// Usage is what each container uses whose pod does not declare it: CPU and memory.
	Usage corev1.ResourceList
}

// describe writes what a group says into a node, the turn-th of it. A guest has no group, and is described by its object.
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

// phases are how long pods take on a node.
func (f *fleet) phases(n *node) Phases {
	if n.group == nil {
		return f.o.Phases
	}
	return n.group.Phases
}
