// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/knftables"
)

// The maps and sets that plans have elements in.
const (
	clusterIPs       = "cluster-ips"             // set: the addresses of Services
	serviceIPs       = "service-ips"             // map: where an address and port go to
	serviceNodePorts = "service-nodeports"       // map: where a node port goes to
	noEndpointIPs    = "no-endpoint-services"    // map: what happens to those that have no endpoint
	noEndpointPorts  = "no-endpoint-nodeports"   // map: the same for node ports
	firewallIPs      = "firewall-ips"            // map: addresses that not everybody may reach
	hairpins         = "hairpin-connections"     // set: endpoints on this node that may reach themselves
	rejectVerdict    = "goto " + rejectChain     //
	dropVerdict      = "drop"                    //
	masqueradeMark   = "0x4000"                  // kube-proxy's, so that both mean the same
	setMark          = "mark set mark or 0x4000" //
)

// containers are all of them, in the order in which they are filled; a set's elements have no value.
func containers() []string {
	out := []string{clusterIPs, serviceIPs, serviceNodePorts, noEndpointIPs, noEndpointPorts, firewallIPs, hairpins}
	for i := range longest {
		out = append(out, backend(i))
	}
	return out
}

// Most ports have no rules of their own. Their address leads to the chain that draws one of as many endpoints as they have;
// that leads to the chain of the first, the second and so on, which looks in the map of the same name where that is. So a
// change of endpoints is a few elements, whatever the number of Services.

// drawing is the chain that draws one of n.
func drawing(n int) string { return "draw-" + strconv.Itoa(n) }

// backend is the chain of the endpoint of a number, and the map of where it is.
func backend(i int) string { return "backend-" + strconv.Itoa(i) }

func isSet(container string) bool { return container == clusterIPs || container == hairpins }

// view is what plans depend on beside the Service: the node that they are made for.
type view struct {
	family
	node, zone string
	pods       []netip.Prefix // of the cluster, in this family
	addresses  []netip.Addr   // the node's own
}

// local matches traffic of pods, rest all other; empty where pods are not known.
func (v view) local() string {
	if len(v.pods) == 0 {
		return ""
	}
	return v.match + " saddr " + braces(v.pods)
}

func (v view) foreign() string {
	if len(v.pods) == 0 {
		return ""
	}
	return v.match + " saddr != " + braces(v.pods)
}

// braces is an anonymous set, or the one thing that would be in it.
func braces[T fmt.Stringer](list []T) string {
	if len(list) == 1 {
		return list[0].String()
	}
	texts := make([]string, len(list))
	for i, t := range list {
		texts[i] = t.String()
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// element is a key of a map or set; "a . b" is nft's way of putting keys together.
type element struct{ container, key string }

// plan is the rules of one Service in one family.
type plan struct {
	chains   map[string][]string      // rules by chain
	affinity map[string]time.Duration // sets of clients that keep to an endpoint
	elements map[element]string       // a map's verdict or place, "" in a set
	flows    []backends               // of its ports of UDP: flows to other places are forgotten

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
		chains: map[string][]string{}, affinity: map[string]time.Duration{}, elements: map[element]string{},
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
func (o *plan) plain(p *servicePort, c choice) bool {
	to := c.cluster
	if p.internalLocal {
		to = c.local
	}
	if p.isExternal() || p.affinity > 0 || len(to) == 0 || len(to) > longest {
		return false
	}
	key := join(p.cluster, p.protocol, p.port)
	o.elements[element{clusterIPs, p.cluster.String()}] = ""
	o.elements[element{serviceIPs, key}] = "goto " + drawing(len(to))
	for i, e := range to {
		o.elements[element{backend(i), key}] = join(e.address.Addr(), e.address.Port())
	}
	o.hairpin(p, to)
	return true
}

// hairpin lets endpoints on this node reach themselves.
func (o *plan) hairpin(p *servicePort, to []endpoint) {
	for _, e := range to {
		if e.local {
			a := e.address.Addr().String()
			o.elements[element{hairpins, join(a, a, p.protocol, e.address.Port())}] = ""
		}
	}
}

// port adds what one port needs.
func (o *plan) port(p *servicePort, c choice, v view) {
	if o.plain(p, c) {
		return
	}
	base := chainBase(p)
	byCluster, byLocal, external, firewall := "service-"+base, "local-"+base, "external-"+base, "firewall-"+base
	if p.usesCluster() && len(c.cluster) > 0 {
		o.spread(byCluster, p, c.cluster, v)
	}
	if p.usesLocal() && len(c.local) > 0 {
		o.spread(byLocal, p, c.local, v)
	}
	if p.affinity > 0 {
		for _, e := range c.used {
			set := affinitySet(p, e)
			o.affinity[set] = p.affinity
			o.chains[endpointChain(p, e)] = []string{
				"update @" + set + " { " + v.match + " saddr }",
				"meta l4proto " + p.protocol + " dnat to " + e.address.String(),
			}
		}
	}
	o.hairpin(p, c.used)

	inside, outside := byCluster, byCluster
	hasInside, hasOutside := c.any, c.any
	if p.internalLocal {
		inside, hasInside = byLocal, len(c.local) > 0
	}
	if p.externalLocal {
		outside, hasOutside = byLocal, len(c.local) > 0
	}
	// Without any endpoint callers are told; with none here alone, others may be asked who have one.
	verdict := dropVerdict
	if !c.any {
		verdict = rejectVerdict
	} else {
		if !hasInside {
			o.noInternal++
		}
		if !hasOutside && p.isExternal() {
			o.noExternal++
		}
	}
	o.elements[element{clusterIPs, p.cluster.String()}] = ""
	own := join(p.cluster, p.protocol, p.port)
	if hasInside {
		o.elements[element{serviceIPs, own}] = "goto " + inside
	} else {
		o.elements[element{noEndpointIPs, own}] = verdict
	}
	if !p.isExternal() {
		return
	}
	if c.any {
		o.chains[external] = externalRules(p, byCluster, outside, hasOutside, v)
	}
	for _, a := range slices.Concat(p.external, p.balanced) {
		key := join(a, p.protocol, p.port)
		if c.any {
			o.elements[element{serviceIPs, key}] = "goto " + external
		}
		if !hasOutside {
			o.elements[element{noEndpointIPs, key}] = verdict
		}
	}
	if p.nodePort != 0 {
		key := join(p.protocol, p.nodePort)
		if c.any {
			o.elements[element{serviceNodePorts, key}] = "goto " + external
		}
		if !hasOutside {
			o.elements[element{noEndpointPorts, key}] = verdict
		}
	}
	if len(p.balanced) > 0 && len(p.sources) > 0 {
		for _, from := range allowed(p, v) {
			o.chains[firewall] = append(o.chains[firewall], v.match+" saddr "+from+" return")
		}
		o.chains[firewall] = append(o.chains[firewall], "drop")
		for _, a := range p.balanced {
			o.elements[element{firewallIPs, join(a, p.protocol, p.port)}] = "goto " + firewall
		}
	}
}

// externalRules are what traffic to other addresses than the Service's own goes through. It may leave the node again, so
// that the answer has to come back here; by the policy Local it does not, and who calls stays visible. Pods and the node
// itself reach all endpoints even so, as if they had gone out and come back through the load balancer.
func externalRules(p *servicePort, byCluster, outside string, hasOutside bool, v view) []string {
	if !p.externalLocal {
		return []string{setMark, "goto " + outside}
	}
	var out []string
	if pods := v.local(); pods != "" {
		out = append(out, pods+" goto "+byCluster)
	}
	out = append(out, "fib saddr type local "+setMark, "fib saddr type local goto "+byCluster)
	if hasOutside {
		out = append(out, "goto "+outside)
	}
	return out
}

// allowed is who may reach a load balancer's addresses. A node that may calls with the very address that it calls, where
// that is local to it.
func allowed(p *servicePort, v view) []string {
	texts := make([]string, 0, len(p.sources))
	for _, s := range p.sources {
		texts = append(texts, s.String())
	}
	node := slices.ContainsFunc(p.sources, func(s netip.Prefix) bool { return slices.ContainsFunc(v.addresses, s.Contains) })
	for _, a := range p.balanced {
		if node && !slices.ContainsFunc(p.sources, func(s netip.Prefix) bool { return s.Contains(a) }) {
			texts = append(texts, a.String())
		}
	}
	return texts
}

// spread writes a chain that picks one of the endpoints.
func (o *plan) spread(chain string, p *servicePort, to []endpoint, v view) {
	if p.affinity > 0 {
		o.keep(chain, p, to, v)
		return
	}
	if len(to) > longest {
		places := make([]string, len(to))
		for i, e := range to {
			places[i] = fmt.Sprintf("%d : %s . %d", i, e.address.Addr(), e.address.Port())
		}
		o.chains[chain] = []string{fmt.Sprintf("meta l4proto %s dnat %s addr . port to numgen random mod %d map { %s }",
			p.protocol, v.match, len(to), strings.Join(places, ", "))}
		return
	}
	o.chains[chain] = draw(to, func(e endpoint) string { return "meta l4proto " + p.protocol + " dnat to " + e.address.String() })
}

// longest is how many endpoints are drawn from by a chain for each number of them, or in a port's own chain by a rule each. More
// are in one small map of the port's own, which does it in one step; but a kernel takes a minute for ten thousand of such maps,
// since it looks at all when it gives one its name.
const longest = 32

// draw picks one of the endpoints, each as likely as the others: the first by one in n, the next by one in what remains.
func draw(to []endpoint, verdict func(endpoint) string) []string {
	rules := make([]string, len(to))
	for i, e := range to {
		if left := len(to) - i; left > 1 {
			rules[i] = "numgen random mod " + strconv.Itoa(left) + " 0 " + verdict(e)
		} else {
			rules[i] = verdict(e)
		}
	}
	return rules
}

// keep writes one that looks first whether the client has an endpoint already.
func (o *plan) keep(chain string, p *servicePort, to []endpoint, v view) {
	var rules []string
	if len(to) > 1 {
		for _, e := range to {
			rules = append(rules, v.match+" saddr @"+affinitySet(p, e)+" goto "+endpointChain(p, e))
		}
	}
	o.chains[chain] = append(rules, draw(to, func(e endpoint) string { return "goto " + endpointChain(p, e) })...)
}

// join puts a key together.
func join(parts ...any) string {
	var out strings.Builder
	for i, p := range parts {
		if i > 0 {
			out.WriteString(" . ")
		}
		switch p := p.(type) {
		case string:
			out.WriteString(p)
		case netip.Addr:
			out.WriteString(p.String())
		case int32:
			out.WriteString(strconv.Itoa(int(p)))
		case uint16:
			out.WriteString(strconv.Itoa(int(p)))
		}
	}
	return out.String()
}

// isOurs tells the chains and sets of Services from those of the skeleton: their names alone have a slash.
func isOurs(name string) bool { return strings.Contains(name, "/") }

// chainBase is the part of a chain's name that says which port it is for.
func chainBase(p *servicePort) string {
	return named(fmt.Sprintf("%s/%s/%s/%s", p.service.Namespace, p.service.Name, p.protocol, p.name))
}

func endpointChain(p *servicePort, e endpoint) string { return "endpoint-" + endpointBase(p, e) }

// affinitySet is the set of the clients of an endpoint. A set's time cannot be changed: another time is another set.
func affinitySet(p *servicePort, e endpoint) string {
	return "affinity-" + strconv.Itoa(int(p.affinity/time.Second)) + "-" + endpointBase(p, e)
}

func endpointBase(p *servicePort, e endpoint) string {
	a := strings.ReplaceAll(e.address.Addr().String(), ":", ".") // no chain's name has a colon
	return named(fmt.Sprintf("%s/%s/%s/%s__%s/%d", p.service.Namespace, p.service.Name, p.protocol, p.name, a, e.address.Port()))
}

// named makes a name that is told apart at a glance, and short enough: a hash stands before it.
func named(text string) string {
	const prefix = 24 // the longest one, with room
	hash := sha256.Sum256([]byte(text))
	name := base32.StdEncoding.EncodeToString(hash[:5]) + "-" + text
	if most := knftables.NameLengthMax - prefix; len(name) > most {
		name = name[:most-3] + "..."
	}
	return name
}
