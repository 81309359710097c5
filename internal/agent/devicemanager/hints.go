// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
)

// byAffinity divides devices, sorted, into those of the policy's NUMA nodes, those of others, and those without one. Without a policy's
// decision all are without one. A device of several nodes counts for the first of them in kubelet's order: the policy's before others, and
// those with few devices before those with many.
func (r *resource) byAffinity(ids []string, affinity containermanager.TopologyHint) (near, far, nowhere []string) {
	if !affinity.Aligned() || !r.aligned() {
		return nil, nil, ids
	}
	for _, id := range ids {
		nodes := r.devices[id].numa
		switch {
		case len(nodes) == 0:
			nowhere = append(nowhere, id)
		case slices.ContainsFunc(nodes, func(n int64) bool { return affinity.Nodes.Has(int(n)) }):
			near = append(near, id)
		default:
			far = append(far, id)
		}
	}
	return near, far, nowhere
}

// aligner gives hints.
type aligner struct{ *Manager }

// TopologyHints returns from which NUMA nodes the devices of a container, or of a pod as a whole, can come.
func (m aligner) TopologyHints(r containermanager.Request) map[string][]containermanager.TopologyHint {
	m.forgetGone()
	counts := map[string]int{}
	if r.Container != nil {
		for _, name := range m.asked(r.Pod, r.Container) {
			q := r.Container.Resources.Limits[corev1.ResourceName(name)]
			counts[name] = int(q.Value())
		}
	} else {
		for name, q := range resourcehelper.PodLimits(r.Pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true}) {
			if q.Value() > 0 && m.known(string(name)) != nil {
				counts[string(name)] = int(q.Value())
			}
		}
	}
	out := map[string][]containermanager.TopologyHint{}
	for name, count := range counts {
		res := m.known(name)
		if res == nil {
			continue
		}
		m.mu.Lock()
		out[name] = m.hints(r, name, res, count)
		m.mu.Unlock()
	}
	return out
}

// hints returns the hints of one resource. The caller holds the lock.
func (m aligner) hints(q containermanager.Request, name string, r *resource, count int) []containermanager.TopologyHint {
	if !r.aligned() {
		return nil
	}
	var has []string
	for container, resources := range m.pods[q.Pod.UID] {
		if a := resources[name]; a != nil && (q.Container == nil || q.Container.Name == container) {
			has = append(has, a.ids...)
		}
	}
	slices.Sort(has)
	has = slices.Compact(has)
	switch {
	case len(has) == count:
		return m.generate(r, has, nil, count)
	case len(has) > 0:
		return []containermanager.TopologyHint{}
	}
	free := r.free()
	var reusable []string
	if q.Container != nil {
		reusable = m.reusable(q.Pod, q.Container.Name, name)
	}
	if len(free)+len(reusable) < count {
		return []containermanager.TopologyHint{}
	}
	return m.generate(r, free, reusable, count)
}

// generate returns a hint for each set of NUMA nodes that has enough devices, in kubelet's order: fewer nodes first, then lower ones. Those
// with the fewest nodes that could serve the request on an idle machine are preferred.
func (m aligner) generate(r *resource, free, reusable []string, count int) []containermanager.TopologyHint {
	nodes := m.nodesOf(r)
	fewest := len(nodes)
	hints := []containermanager.TopologyHint{}
	on := func(id string, set containermanager.NUMANodes) bool {
		return slices.ContainsFunc(r.devices[id].numa, func(n int64) bool { return set.Has(int(n)) })
	}
	for _, set := range subsets(nodes) {
		all := 0
		for id := range r.devices {
			if on(id, set) {
				all++
			}
		}
		if all >= count {
			fewest = min(fewest, set.Count())
		}
		matching, fits := 0, true
		for _, id := range reusable {
			if len(r.devices[id].numa) == 0 {
				continue
			}
			if !on(id, set) {
				fits = false
				break
			}
			matching++
		}
		for _, id := range free {
			if on(id, set) {
				matching++
			}
		}
		if fits && matching >= count {
			hints = append(hints, containermanager.TopologyHint{Nodes: set})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == fewest
	}
	return hints
}

// maxHintNodes bounds the NUMA nodes whose subsets are enumerated; kubelet has the same bound for machines.
const maxHintNodes = 8

// nodesOf returns the machine's NUMA nodes that have devices of the resource, sorted; if there are none, all of the machine's.
func (m aligner) nodesOf(r *resource) []int {
	var out []int
	for _, d := range r.devices {
		for _, n := range d.numa {
			if n != checkpoint.NoNUMA && slices.Contains(m.NUMANodes, int(n)) && !slices.Contains(out, int(n)) {
				out = append(out, int(n))
			}
		}
	}
	if len(out) == 0 {
		out = slices.Clone(m.NUMANodes)
	}
	slices.Sort(out)
	return out[:min(len(out), maxHintNodes)]
}

// subsets returns all sets of nodes but the empty one: fewer nodes first, then lower numbers first.
func subsets(nodes []int) []containermanager.NUMANodes {
	var out []containermanager.NUMANodes
	for bits := 1; bits < 1<<len(nodes); bits++ {
		var set containermanager.NUMANodes
		for i, n := range nodes {
			if bits&(1<<i) != 0 {
				set |= containermanager.NUMAMask(n)
			}
		}
		out = append(out, set)
	}
	slices.SortStableFunc(out, func(a, b containermanager.NUMANodes) int {
		return cmp.Or(cmp.Compare(a.Count(), b.Count()), lower(a, b))
	})
	return out
}

// lower compares two sets of equally many nodes: the one with the lowest node that the other lacks comes first.
func lower(a, b containermanager.NUMANodes) int {
	if a == b {
		return 0
	}
	first := (a ^ b) & -(a ^ b)
	if a&first != 0 {
		return -1
	}
	return 1
}
