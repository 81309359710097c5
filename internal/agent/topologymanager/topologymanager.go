// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package topologymanager decides from which NUMA nodes a container, or a pod, gets its resources, so that CPUs, memory and devices are
// close to each other. It merges the hints of all managers into one, with kubelet's four policies. It is pure, and safe for concurrent use.
//
//	topologymanager.go  the policies
//	merge.go            the best common hint
//	options.go          the options of the policies
package topologymanager

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
)

// Config configures a policy.
type Config struct {
	Policy  string // none, best-effort, restricted or single-numa-node
	Scope   string // container or pod
	Options map[string]string
	Machine cputopology.Machine
	// PodLevel means that pod-level resources are allocated to the pod as a whole (gate PodLevelResourceManagers).
	PodLevel bool
}

// Policy is a policy other than none.
type Policy struct {
	name, scope string
	closest     bool // of two sets of as many nodes, the one with the shorter distances is better
	podLevel    bool
	all         containermanager.NUMANodes
	distances   map[int][]uint64 // by node
}

// New makes the policy; nil for the policy none. The errors are kubelet's.
func New(c Config) (*Policy, error) {
	if c.Policy == configv1beta1.NoneTopologyManagerPolicy {
		return nil, nil //nolint:nilnil // the zero policy
	}
	o, err := ParseOptions(c.Options)
	if err != nil {
		return nil, err
	}
	p := &Policy{name: c.Policy, scope: c.Scope, closest: o.PreferClosestNUMANodes, podLevel: c.PodLevel, distances: map[int][]uint64{}}
	for _, node := range c.Machine.Nodes {
		if node.ID < 0 || node.ID > 63 {
			return nil, fmt.Errorf("cannot discover NUMA topology: NUMA node %d: only 0 to 63 are supported", node.ID)
		}
		if o.PreferClosestNUMANodes && node.Distances == nil {
			return nil, errors.New("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
		}
		p.all |= containermanager.NUMAMask(node.ID)
		p.distances[node.ID] = node.Distances
	}
	switch {
	case len(c.Machine.Nodes) > o.MaxAllowableNUMANodes:
		return nil, fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", o.MaxAllowableNUMANodes)
	case !slices.Contains([]string{configv1beta1.BestEffortTopologyManagerPolicy, configv1beta1.RestrictedTopologyManagerPolicy,
		configv1beta1.SingleNumaNodeTopologyManagerPolicy}, c.Policy):
		return nil, fmt.Errorf("unknown policy: %q", c.Policy)
	case c.Scope != containermanager.ContainerScope && c.Scope != containermanager.PodScope:
		return nil, fmt.Errorf("unknown scope: %q", c.Scope)
	}
	return p, nil
}

// Scope returns container or pod.
func (p *Policy) Scope() string { return p.scope }

// WholePod reports whether a pod's resources are allocated to the pod as a whole.
func (p *Policy) WholePod(pod *corev1.Pod) bool { return p.podLevel && podshare.PodLevel(pod) }

// Guarantees reports whether what the policy admits is within one NUMA node.
func (p *Policy) Guarantees() bool {
	return p.name == configv1beta1.SingleNumaNodeTopologyManagerPolicy
}

// Merge returns the best common hint of the managers, and whether the policy admits it. The hints are one map for each manager.
func (p *Policy) Merge(hints []map[string][]containermanager.TopologyHint) (best containermanager.TopologyHint, admit bool) {
	lists := flatten(hints)
	if p.Guarantees() {
		for i := range lists {
			lists[i] = slices.DeleteFunc(slices.Clone(lists[i]), func(h containermanager.TopologyHint) bool {
				return !h.Preferred || h.Aligned() && h.Nodes.Count() != 1
			})
		}
	}
	best = p.best(lists)
	if p.Guarantees() && best.Nodes == p.all {
		best = containermanager.TopologyHint{Any: true, Preferred: best.Preferred}
	}
	return best, p.name == configv1beta1.BestEffortTopologyManagerPolicy || best.Preferred
}

// Subsets returns all sets of NUMA nodes but the empty one: the small ones first, those of a size in lexical order of the given nodes.
func Subsets(nodes []int) iter.Seq[containermanager.NUMANodes] {
	return func(yield func(containermanager.NUMANodes) bool) {
		var choose func(from, more int, chosen containermanager.NUMANodes) bool
		choose = func(from, more int, chosen containermanager.NUMANodes) bool {
			if more == 0 {
				return yield(chosen)
			}
			for i := from; i <= len(nodes)-more; i++ {
				if !choose(i+1, more-1, chosen|containermanager.NUMAMask(nodes[i])) {
					return false
				}
			}
			return true
		}
		for size := 1; size <= len(nodes); size++ {
			if !choose(0, size, 0) {
				return
			}
		}
	}
}

// Narrower reports whether a set of NUMA nodes has fewer nodes than another, or as many and lower ones.
func Narrower(a, b containermanager.NUMANodes) bool {
	if a.Count() != b.Count() {
		return a.Count() < b.Count()
	}
	return a < b
}
