// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
)

// choice has the endpoints of a port that this node uses.
type choice struct {
	cluster []endpoint // for the policy Cluster
	local   []endpoint // for the policy Local
	used    []endpoint // both, each once
	any     bool       // an endpoint exists somewhere in the cluster
}

// choose selects the endpoints: the ready ones or, if there are none, those that still serve while they terminate. The policy Cluster
// selects the node's or the zone's endpoints if the hints of all ready ones allow it.
func choose(all []endpoint, p *servicePort, node, zone string) choice {
	var c choice
	if len(all) == 0 {
		return c
	}
	if p.usesCluster() {
		near := nearness(all, node, zone)
		c.cluster = filter(all, func(e *endpoint) bool { return e.ready && near(e) })
		if len(c.cluster) == 0 {
			c.cluster = filter(all, leaving)
		}
		c.any = len(c.cluster) > 0
	}
	if !p.usesLocal() {
		c.used = c.cluster
		return c
	}
	c.local = filter(all, func(e *endpoint) bool { return e.local && e.ready })
	if len(c.local) == 0 {
		c.local = filter(all, func(e *endpoint) bool { return e.local && leaving(e) })
	}
	c.any = c.any || slices.ContainsFunc(all, func(e endpoint) bool { return e.ready || leaving(&e) })
	c.used = slices.Clone(c.cluster)
	for _, e := range c.local {
		if !slices.ContainsFunc(c.used, func(o endpoint) bool { return o.address == e.address }) {
			c.used = append(c.used, e)
		}
	}
	slices.SortFunc(c.used, func(a, b endpoint) int { return a.address.Compare(b.address) })
	return c
}

func leaving(e *endpoint) bool { return e.serving && e.terminating }

func filter(all []endpoint, keep func(*endpoint) bool) []endpoint {
	var out []endpoint
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// nearness returns the endpoints that hints assign to this node. Hints apply only if every ready endpoint has them and one of them is for
// this node: otherwise traffic would be lost.
func nearness(all []endpoint, node, zone string) func(*endpoint) bool {
	forNode := func(e *endpoint) bool { return slices.Contains(e.nodes, node) }
	forZone := func(e *endpoint) bool { return slices.Contains(e.zones, zone) }
	ready, nodes, zones, here, near := false, true, true, false, false
	for i := range all {
		if e := &all[i]; e.ready {
			ready = true
			nodes, zones = nodes && len(e.nodes) > 0, zones && len(e.zones) > 0
			here, near = here || forNode(e), near || forZone(e)
		}
	}
	switch {
	case ready && nodes && here:
		return forNode
	case ready && zones && near:
		return forZone
	}
	return func(*endpoint) bool { return true }
}
