// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one possible destination of a port.
type endpoint struct {
	address                     netip.AddrPort
	local                       bool // on this node
	ready, serving, terminating bool
	zones, nodes                []string // of its hints
}

// portKey connects a Service's port with the ports of its slices.
type portKey struct{ name, protocol string }

// endpointsOf reads a Service's slices: the endpoints of each port, sorted by their addresses.
func endpointsOf(slicesOf []*discoveryv1.EndpointSlice, f family, node string) map[portKey][]endpoint {
	found := map[portKey]map[netip.AddrPort]endpoint{}
	want := discoveryv1.AddressTypeIPv4
	if f.v6 {
		want = discoveryv1.AddressTypeIPv6
	}
	// A stable order, for endpoints in two slices.
	ordered := slices.SortedFunc(slices.Values(slicesOf), func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range ordered {
		if s.AddressType != want {
			continue
		}
		if _, headless := s.Labels[corev1.IsHeadlessService]; headless {
			continue
		}
		for _, p := range s.Ports {
			if p.Name == nil || p.Port == nil || *p.Port == 0 {
				continue
			}
			key := portKey{*p.Name, "tcp"}
			if p.Protocol != nil {
				key.protocol = protocolOf(*p.Protocol)
			}
			if found[key] == nil {
				found[key] = map[netip.AddrPort]endpoint{}
			}
			for i := range s.Endpoints {
				e, ok := read(&s.Endpoints[i], f, uint16(*p.Port), node)
				if !ok {
					continue
				}
				// Two pods may have the same address for a while: the one that is not terminating counts.
				if _, is := found[key][e.address]; !is || !e.terminating {
					found[key][e.address] = e
				}
			}
		}
	}
	out := make(map[portKey][]endpoint, len(found))
	for key, set := range found {
		if len(set) > 0 {
			out[key] = slices.SortedFunc(maps.Values(set), func(a, b endpoint) int { return a.address.Compare(b.address) })
		}
	}
	return out
}

// read converts an endpoint. It returns none for an endpoint without an address of the family, or with a zone: netip accepts any text as a
// zone, and the text would become part of a rule.
func read(e *discoveryv1.Endpoint, f family, port uint16, node string) (endpoint, bool) {
	if len(e.Addresses) == 0 {
		return endpoint{}, false
	}
	a, err := netip.ParseAddr(e.Addresses[0])
	if err != nil || a.Zone() != "" || !f.has(a) {
		return endpoint{}, false
	}
	c := e.Conditions
	out := endpoint{
		address: netip.AddrPortFrom(a, port), local: e.NodeName != nil && node != "" && *e.NodeName == node,
		ready: c.Ready == nil || *c.Ready, serving: c.Serving == nil || *c.Serving, terminating: c.Terminating != nil && *c.Terminating,
	}
	if h := e.Hints; h != nil {
		for _, z := range h.ForZones {
			out.zones = append(out.zones, z.Name)
		}
		for _, n := range h.ForNodes {
			out.nodes = append(out.nodes, n.Name)
		}
	}
	return out, true
}

// localReady counts the ready pods on this node, regardless of their ports.
func localReady(ports map[portKey][]endpoint) int {
	seen := map[netip.Addr]bool{}
	for _, list := range ports {
		for _, e := range list {
			if e.ready && e.local {
				seen[e.address.Addr()] = true
			}
		}
	}
	return len(seen)
}
