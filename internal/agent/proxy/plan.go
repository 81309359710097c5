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

// The maps and sets that plans have elements in.
const (
	clusterIPs       = "cluster-ips"           // set: the addresses of Services
	serviceIPs       = "service-ips"           // map: where an address and port go to
	serviceNodePorts = "service-nodeports"     // map: where a node port goes to
	noEndpointIPs    = "no-endpoint-services"  // map: what happens to those that have no endpoint
	noEndpointPorts  = "no-endpoint-nodeports" // map: the same for node ports
	firewallIPs      = "firewall-ips"          // map: addresses with source ranges
	hairpins         = "hairpin-connections"   // set: endpoints on this node that may reach themselves
)

// masqueradeMark is kube-proxy's default, so that both have the same meaning.
const masqueradeMark = "0x4000"

// Most ports have no chains of their own. Their address leads to the chain that draws one of as many endpoints as
// they have; that leads to the chain of the first, the second and so on, which looks in the map of the same name where that is. So a
// change of endpoints is a few elements, whatever the number of Services. Where a backend has no maps, these elements are rules that do
// the same, and those chains are not there.

// drawOf is the chain that draws one of n.
func drawOf(n int) chain { return chain{drawing, strconv.Itoa(n)} }

// backendOf is the chain of the endpoint of a number, and the map of where it is.
func backendOf(i int) chain { return chain{backend, strconv.Itoa(i)} }

// backendMap is the name of that map.
func backendMap(i int) string { return string(backend) + "-" + strconv.Itoa(i) }

func isSet(container string) bool { return container == clusterIPs || container == hairpins }

// plan is the rules of one Service in one family.
type plan struct {
	chains   map[chain][]rule
	affinity map[keep]bool       // who is remembered
	elements map[element]verdict // none in a set
	flows    []backends          // of its ports of UDP: flows to other places are forgotten

	healthPort int32
	healthy    int // pods on this node that are ready
	noInternal int // ports without an endpoint here by the policy Local
	noExternal int
}

// makePlan decides the rules of a Service; nil if it has none.
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

// plain adds what one port needs that wants no rules of its own, and says whether it is such a port.
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

// at is the element of the port at an address.
func (p *servicePort) at(container string, a netip.Addr) element {
	return element{container, a, p.protocol, uint16(p.port)}
}

// hairpin lets endpoints on this node reach themselves.
func (o *plan) hairpin(p *servicePort, to []endpoint) {
	for _, e := range to {
		if e.local {
			o.elements[element{hairpins, e.address.Addr(), p.protocol, e.address.Port()}] = verdict{}
		}
	}
}

// port adds what one port needs.
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

// externalRules are what traffic to other addresses than the Service's own goes through. It may leave the node again, so
// that the answer has to come back here; by the policy Local it does not, and who calls stays visible. Pods and the node
// itself reach all endpoints even so, as if they had gone out and come back through the load balancer.
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

// allowed is who may reach a load balancer's addresses. A node that may calls with the very address that it calls, where
// that is local to it.
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

// longest is how many endpoints nftables draws from by a chain for each number of them, or in a port's own chain by a rule each. More
// are in one small map of the port's own, which does it in one step; but a kernel takes a minute for ten thousand of such maps,
// since it looks at all when it gives one its name.
const longest = 32

// spread writes a chain that picks one of the endpoints. With affinity it looks first whether the client has one already.
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

// translated sends to an endpoint.
func (p *servicePort) translated(e endpoint) rule {
	return rule{protocol: p.protocol, to: []verdict{{do: translate, chainKey: e.address}}}
}

// text says which port it is, in names.
func (p *servicePort) text() string {
	return p.service.Namespace + "/" + p.service.Name + "/" + p.protocol + "/" + p.name
}

// keep is the clients of an endpoint of the port.
func (p *servicePort) keep(e endpoint) keep {
	return keep{p.text() + "__" + e.address.Addr().String() + "/" + strconv.Itoa(int(e.address.Port())), p.affinity}
}
