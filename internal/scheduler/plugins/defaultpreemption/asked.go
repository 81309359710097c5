// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// asked caches a node's victims for the next pod like the last: preempting pods are mostly many that are alike, and each changes one node.
// The victims depend on the node, on the pods nominated to it, and on what like pods have in common. Nothing is cached if disruption
// budgets, or filters that depend on more than the node, affect the result.
type asked struct {
	like  string // what the pods have in common; empty: nothing is cached
	nodes map[string]answer
	about likeness
}

// likeness is what a profile's handle implements beside the framework's interface.
type likeness interface {
	// Alike returns equal strings for pods that the filters treat alike as long as a node and the pods nominated to it are the same; empty:
	// unknown.
	Alike(ctx context.Context, state fwk.CycleState, pod *corev1.Pod) string
	// Nominations returns the pods nominated to a node, and a number that no other set of them has; 0 if that number does not determine the
	// result for the pod.
	Nominations(node string, pod *corev1.Pod) ([]fwk.PodInfo, uint64)
}

type answer struct {
	generation int64 // the node's
	version    uint64
	candidate  *candidate // nil: the node was rejected
	refusal    *fwk.Status
}

// begin starts the search for a pod. It drops the cache unless the pod is like the last, and the entries of removed nodes.
func (a *asked) begin(ctx context.Context, handle fwk.Handle, state fwk.CycleState, pod *corev1.Pod, nodes int, budgets bool) {
	like := ""
	var known bool
	if a.about, known = handle.(likeness); known && !budgets {
		like = a.about.Alike(ctx, state, pod)
	}
	if like != a.like || like == "" || len(a.nodes) > 2*nodes {
		a.like, a.nodes = like, map[string]answer{}
	}
}

// of returns the cached result for the node, or the result of find.
func (a *asked) of(pod *corev1.Pod, node fwk.NodeInfo, find func() (*candidate, *fwk.Status, error)) (*candidate, *fwk.Status, error) {
	name := node.Node().Name
	now, keep := answer{generation: node.GetGeneration()}, a.like != ""
	if keep {
		var nominated []fwk.PodInfo
		nominated, now.version = a.about.Nominations(name, pod)
		keep = len(nominated) == 0 || now.version != 0
		if was, ok := a.nodes[name]; ok && keep && was.generation == now.generation && was.version == now.version {
			return was.candidate.again(), was.refusal, nil
		}
	}
	c, st, err := find()
	if c != nil {
		c.node = node
	}
	if err == nil && keep {
		now.candidate, now.refusal = c.again(), st
		a.nodes[name] = now
	}
	return c, st, err
}

// again returns a copy for another pod: extenders may change it.
func (c *candidate) again() *candidate {
	if c == nil {
		return nil
	}
	return &candidate{node: c.node, victims: slices.Clone(c.victims), hurt: c.hurt}
}
