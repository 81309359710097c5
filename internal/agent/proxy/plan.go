// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// The maps and sets of plans' elements.
const (
	clusterIPs       = "cluster-ips"           // set: the addresses of Services
	serviceIPs       = "service-ips"           // map: the destination of an address and port
	serviceNodePorts = "service-nodeports"     // map: the destination of a node port
	noEndpointIPs    = "no-endpoint-services"  // map: the verdict for addresses and ports without endpoints
	noEndpointPorts  = "no-endpoint-nodeports" // map: the same for node ports
	firewallIPs      = "firewall-ips"          // map: addresses with source ranges
	hairpins         = "hairpin-connections"   // set: endpoints on this node that may reach themselves
)

// masqueradeMark is kube-proxy's default, so that the mark has the same meaning for both.
const masqueradeMark = "0x4000"

// Most ports have no chains of their own. Their address leads to a shared chain for ports with the same number of endpoints, which selects
// one at random; that leads to the shared chain of the first, second, … endpoint, which looks up its address in the map of the same name.
// So a change of endpoints is a change of a few elements, whatever the number of Services. In a backend without maps, these elements are
// equivalent rules, and those chains do not exist.

// drawOf returns the chain that selects one of n endpoints.
func drawOf(n int) chain { return chain{drawing, strconv.Itoa(n)} }

// backendOf returns the chain of the endpoint with this number; backendMap has its addresses.
func backendOf(i int) chain { return chain{backend, strconv.Itoa(i)} }

// backendMap returns the name of that map.
func backendMap(i int) string { return string(backend) + "-" + strconv.Itoa(i) }

func isSet(container string) bool { return container == clusterIPs || container == hairpins }

// plan has the rules of one Service in one family.
type plan struct {
	chains   map[chain][]rule
	affinity map[keep]bool       // client sets of session affinity
	elements map[element]verdict // without values in a set
	flows    []backends          // of its UDP ports: flows to other destinations are deleted

	healthPort int32
	healthy    int // ready pods on this node
	noInternal int // ports without an endpoint here with the policy Local
	noExternal int
}

// makePlan computes the rules of a Service; nil: it has none.
func makePlan(svc *corev1.Service, list []*discoveryv1.EndpointSlice, v view) *plan {
	ports := portsOf(svc, v.family)
	if len(ports) == 0 {
		return nil
	}
	known := endpointsOf(list, v.family, v.node)
	out := &plan{
		chains: map[chain][]rule{}, affinity: map[keep]bool{}, elements: map[element]verdict{},
		healthPort: healthPort(svc), healthy: localReady(known),
	}
	for i := range ports {
		p := &ports[i]
		all := known[portKey{p.name, p.protocol}]
		if p.protocol == "udp" {
			out.flows = append(out.flows, backendsOf(p, all))
		}
		out.port(p, choose(all, p, v.node, v.zone), v)
	}
	return out
}

// plain adds the elements of a port that needs no rules of its own, and reports whether the port is such a port.
func (o *plan) plain(p *servicePort, c choice, v view) bool {
	to := c.cluster
	if p.internalLocal {
		to = c.local
	}
	if p.isExternal() || p.affinity > 0 || len(to) == 0 || len(to) > v.plain {
		return false
	}
	o.elements[element{container: clusterIPs, addr: p.cluster}] = verdict{}
	o.elements[p.at(serviceIPs, p.cluster)] = verdict{do: jump, chain: drawOf(len(to))}
	for i, e := range to {
		o.elements[p.at(backendMap(i), p.cluster)] = verdict{chainKey: e.address}
	}
	o.hairpin(p, to)
	return true
}

// at returns the element of the port at an address.
func (p *servicePort) at(container string, a netip.Addr) element {
	return element{container, a, p.protocol, uint16(p.port)}
}

// hairpin lets endpoints on this node connect to themselves.
func (o *plan) hairpin(p *servicePort, to []endpoint) {
	for _, e := range to {
		if e.local {
			o.elements[element{hairpins, e.address.Addr(), p.protocol, e.address.Port()}] = verdict{}
		}
	}
}

// port adds the rules of one port.
func (o *plan) port(p *servicePort, c choice, v view) {
	if o.plain(p, c, v) {
		return
	}
	of := p.text()
	cluster, local, outer, guard := chain{byCluster, of}, chain{byLocal, of}, chain{external, of}, chain{firewall, of}
	if p.usesCluster() && len(c.cluster) > 0 {
		o.spread(cluster, p, c.cluster)
	}
	if p.usesLocal() && len(c.local) > 0 {
		o.spread(local, p, c.local)
	}
	if p.affinity > 0 {
		for _, e := range c.used {
			k := p.keep(e)
			o.affinity[k] = true
			o.chains[chain{toEndpoint, k.of}] = []rule{{remember: k}, p.translated(e)}
		}
	}
	o.hairpin(p, c.used)

	inside, outside := cluster, cluster
	hasInside, hasOutside := c.any, c.any
	if p.internalLocal {
		inside, hasInside = local, len(c.local) > 0
	}
	if p.externalLocal {
		outside, hasOutside = local, len(c.local) > 0
	}
	// Without any endpoint traffic is rejected; without a local one it is dropped, since other nodes may have one.
	without := verdict{do: drop, chain: chain{of: of}}
	if !c.any {
		without.do = refuse
	} else {
		if !hasInside {
			o.noInternal++
		}
		if !hasOutside && p.isExternal() {
			o.noExternal++
		}
	}
	o.elements[element{container: clusterIPs, addr: p.cluster}] = verdict{}
	if hasInside {
		o.elements[p.at(serviceIPs, p.cluster)] = verdict{do: jump, chain: inside}
	} else {
		o.elements[p.at(noEndpointIPs, p.cluster)] = without
	}
	if !p.isExternal() {
		return
	}
	if c.any {
		o.chains[outer] = externalRules(p, cluster, outside, hasOutside, v)
	}
	for _, a := range slices.Concat(p.external, p.balanced) {
		if c.any {
			o.elements[p.at(serviceIPs, a)] = verdict{do: jump, chain: outer}
		}
		if !hasOutside {
			o.elements[p.at(noEndpointIPs, a)] = without
		}
	}
	if p.nodePort != 0 {
		e := element{protocol: p.protocol, port: uint16(p.nodePort)}
		if c.any {
			e.container = serviceNodePorts
			o.elements[e] = verdict{do: jump, chain: outer}
		}
		if !hasOutside {
			e.container = noEndpointPorts
			o.elements[e] = without
		}
	}
	if len(p.balanced) > 0 && len(p.sources) > 0 {
		for _, from := range allowed(p, v) {
			o.chains[guard] = append(o.chains[guard], rule{from: []netip.Prefix{from}, to: []verdict{{do: back}}})
		}
		o.chains[guard] = append(o.chains[guard], does(verdict{do: drop}))
		for _, a := range p.balanced {
			o.elements[p.at(firewallIPs, a)] = verdict{do: jump, chain: guard}
		}
	}
}

// externalRules returns the rules for traffic to other addresses than the Service's cluster IP. It may leave the node again, so it is
// masqueraded for the response to return; with the policy Local it does not leave, and the client's address stays. Pods and the node itself
// reach all endpoints even so, as if the traffic had left and come back through the load balancer.
func externalRules(p *servicePort, cluster, outside chain, hasOutside bool, v view) []rule {
	marked, all, on := verdict{do: mark}, verdict{do: jump, chain: cluster}, verdict{do: jump, chain: outside}
	if !p.externalLocal {
		return []rule{does(marked), does(on)}
	}
	var out []rule
	if r, known := v.byPods(); known {
		r.to = []verdict{all}
		out = append(out, r)
	}
	out = append(out, rule{self: true, to: []verdict{marked}}, rule{self: true, to: []verdict{all}})
	if hasOutside {
		out = append(out, does(on))
	}
	return out
}

// allowed returns the rules for a load balancer's source ranges. An allowed node may connect with the very address that it connects to, if
// the address is local.
func allowed(p *servicePort, v view) []netip.Prefix {
	out := slices.Clone(p.sources)
	node := slices.ContainsFunc(p.sources, func(s netip.Prefix) bool { return slices.ContainsFunc(v.addresses, s.Contains) })
	for _, a := range p.balanced {
		if node && !slices.ContainsFunc(p.sources, func(s netip.Prefix) bool { return s.Contains(a) }) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// longest is the maximum number of endpoints for which nftables selects by a shared chain for this number, or by one rule for each in a
// port's own chain. With more endpoints, the port has its own small map, which selects in one step. That is not the rule for all, because a
// kernel takes a minute for ten thousand such maps: it compares all names for a new one.
const longest = 32

// spread writes a chain that selects one of the endpoints. With affinity it first checks whether the client has one already.
func (o *plan) spread(c chain, p *servicePort, to []endpoint) {
	one := rule{protocol: p.protocol, to: make([]verdict, len(to))}
	if p.affinity == 0 {
		for i, e := range to {
			one.to[i] = verdict{do: translate, chainKey: e.address}
		}
		o.chains[c] = []rule{one}
		return
	}
	one.protocol = "" // the endpoint's chain translates
	var rules []rule
	for i, e := range to {
		k := p.keep(e)
		one.to[i] = verdict{do: jump, chain: chain{toEndpoint, k.of}}
		if len(to) > 1 {
			rules = append(rules, rule{kept: k, to: one.to[i : i+1]})
		}
	}
	o.chains[c] = append(rules, one)
}

// translated returns the rule that sends to an endpoint.
func (p *servicePort) translated(e endpoint) rule {
	return rule{protocol: p.protocol, to: []verdict{{do: translate, chainKey: e.address}}}
}

// text returns the port's identification in names.
func (p *servicePort) text() string {
	return p.service.Namespace + "/" + p.service.Name + "/" + p.protocol + "/" + p.name
}

// keep returns the client set of an endpoint of the port.
func (p *servicePort) keep(e endpoint) keep {
	return keep{p.text() + "__" + e.address.Addr().String() + "/" + strconv.Itoa(int(e.address.Port())), p.affinity}
}
