// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package topologymanager

import (
	"maps"
	"slices"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
)

// flatten returns a list of hints for each resource of each manager. A manager, or a resource, without a preference has the hint "any, and
// gladly"; a resource that cannot be had has "any, reluctantly".
func flatten(hints []map[string][]containermanager.TopologyHint) [][]containermanager.TopologyHint {
	anywhere := func(preferred bool) []containermanager.TopologyHint {
		return []containermanager.TopologyHint{{Any: true, Preferred: preferred}}
	}
	var out [][]containermanager.TopologyHint
	for _, manager := range hints {
		if len(manager) == 0 {
			out = append(out, anywhere(true))
		}
		for _, name := range slices.Sorted(maps.Keys(manager)) {
			switch list := manager[name]; {
			case list == nil:
				out = append(out, anywhere(true))
			case len(list) == 0:
				out = append(out, anywhere(false))
			default:
				out = append(out, list)
			}
		}
	}
	return out
}

// candidate is what choosing one hint from each list so far comes to. While it is preferred, all of the chosen hints with NUMA nodes have
// the same nodes.
type candidate struct {
	nodes     containermanager.NUMANodes // that all of the chosen hints have in common
	same      containermanager.NUMANodes // those of the first chosen hint with nodes; zero once they no longer matter
	preferred bool
}

// best returns the best combination of one hint from each list. kubelet forms each combination, of which there may be millions; here
// combinations that come to the same are one from list to list on, of which there are at most as many as sets of nodes.
func (p *Policy) best(lists [][]containermanager.TopologyHint) containermanager.TopologyHint {
	// The most nodes that any list needs at least: what cannot be preferred should have so many.
	goal := 0
	for _, list := range lists {
		narrowest := containermanager.NUMANodes(0)
		for _, h := range list {
			if h.Aligned() && (narrowest == 0 || Narrower(h.Nodes, narrowest)) {
				narrowest = h.Nodes
			}
		}
		goal = max(goal, narrowest.Count())
	}
	reached := map[candidate]bool{{nodes: p.all, preferred: true}: true}
	for _, list := range lists {
		next := map[candidate]bool{}
		for c := range reached {
			for _, h := range list {
				next[c.and(h)] = true
			}
		}
		reached = next
	}
	best := containermanager.TopologyHint{Nodes: p.all}
	found := false
	for c := range reached {
		hint := containermanager.TopologyHint{Nodes: c.nodes, Preferred: c.preferred}
		if c.nodes != 0 && (!found || p.better(hint, best, goal)) {
			best, found = hint, true
		}
	}
	return best
}

func (c candidate) and(h containermanager.TopologyHint) candidate {
	c.preferred = c.preferred && h.Preferred
	if h.Aligned() {
		if c.same == 0 {
			c.same = h.Nodes
		}
		c.preferred = c.preferred && h.Nodes == c.same
		c.nodes &= h.Nodes
	}
	if !c.preferred {
		c.same = 0
	}
	return c
}

// better reports whether a hint is better than another: preferred ones are, then those with the goal of nodes, then those with fewer, the
// more the better, then those with more, the fewer the better. Of as many, the lower or the closer nodes are better.
func (p *Policy) better(a, b containermanager.TopologyHint, goal int) bool {
	if a.Preferred != b.Preferred {
		return a.Preferred
	}
	if rank := func(h containermanager.TopologyHint) int {
		switch n := h.Nodes.Count(); {
		case h.Preferred:
			return 0
		case n > goal:
			return n
		default:
			return goal - n - 64 // all of these before those beyond the goal
		}
	}; rank(a) != rank(b) {
		return rank(a) < rank(b)
	}
	if p.closest && !p.Guarantees() && a.Nodes.Count() == b.Nodes.Count() {
		if x, y := p.distance(a.Nodes), p.distance(b.Nodes); x != y {
			return x < y
		}
	}
	return Narrower(a.Nodes, b.Nodes)
}

// distance returns the average distance between the nodes of a set, each with itself among them.
func (p *Policy) distance(set containermanager.NUMANodes) float64 {
	var nodes []int
	for node := range 64 {
		if set.Has(node) {
			nodes = append(nodes, node)
		}
	}
	sum := 0.0
	for _, a := range nodes {
		for _, b := range nodes {
			if to := p.distances[a]; b < len(to) {
				sum += float64(to[b])
			}
		}
	}
	return sum / float64(len(nodes)*len(nodes))
}
