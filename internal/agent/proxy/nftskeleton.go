// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// tableName is the name of our table: the proxy does not touch kube-proxy's.
const tableName = "mortise-proxy"

// The chains that always exist. The first of each pair is a base chain with a hook of the kernel.
const (
	rejectChain    = "refuse"
	servicesChain  = "services"
	endpointsCheck = "service-endpoints-check"
	nodePortsCheck = "nodeport-endpoints-check"
	clusterIPCheck = "cluster-ips-check"
	firewallCheck  = "firewall-check"
	masquerading   = "masquerading"
	nodePortIPs    = "nodeport-ips" // set: the addresses for node ports, unless these are all
)

// hook is a base chain, and the chains that it jumps to.
type hook struct {
	name     string
	kind     knftables.BaseChainType
	at       knftables.BaseChainHook
	priority knftables.BaseChainPriority
	jumps    []string
}

// hooks are THE order. Source ranges of load balancers are checked before the address is translated; traffic without endpoints is rejected
// afterwards, where the kernel can reject.
func hooks() []hook {
	const (
		fresh  = "ct state new jump "
		always = "jump "
	)
	return []hook{
		{"filter-prerouting-before", knftables.FilterType, knftables.PreroutingHook, knftables.DNATPriority + "-10",
			[]string{fresh + firewallCheck}},
		{"filter-output-before", knftables.FilterType, knftables.OutputHook, knftables.DNATPriority + "-10", []string{fresh + firewallCheck}},
		{"nat-prerouting", knftables.NATType, knftables.PreroutingHook, knftables.DNATPriority, []string{always + servicesChain}},
		{"nat-output", knftables.NATType, knftables.OutputHook, knftables.DNATPriority, []string{always + servicesChain}},
		{"filter-input", knftables.FilterType, knftables.InputHook, knftables.FilterPriority,
			[]string{fresh + nodePortsCheck, fresh + endpointsCheck}},
		{"filter-forward", knftables.FilterType, knftables.ForwardHook, knftables.FilterPriority,
			[]string{fresh + endpointsCheck, fresh + clusterIPCheck}},
		{"filter-output", knftables.FilterType, knftables.OutputHook, knftables.FilterPriority,
			[]string{fresh + endpointsCheck, fresh + clusterIPCheck}},
		{"nat-postrouting", knftables.NATType, knftables.PostroutingHook, knftables.SNATPriority, []string{always + masquerading}},
	}
}

// containers are the maps and sets of plans' elements, in the order in which they are filled; the elements of a set have no value.
func containers() []string {
	out := []string{clusterIPs, serviceIPs, serviceNodePorts, noEndpointIPs, noEndpointPorts, firewallIPs, hairpins}
	for i := range longest {
		out = append(out, backendMap(i))
	}
	return out
}

// skeleton writes everything except the rules of Services.
func skeleton(tx *knftables.Transaction, s surroundings) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Services, by Mortise")})
	chain := func(name string) {
		tx.Add(&knftables.Chain{Name: name})
		tx.Flush(&knftables.Chain{Name: name})
	}
	rule := func(chain string, parts ...any) {
		tx.Add(&knftables.Rule{Chain: chain, Rule: knftables.Concat(parts...)})
	}
	for _, name := range []string{rejectChain, servicesChain, endpointsCheck, nodePortsCheck, clusterIPCheck, firewallCheck, masquerading} {
		chain(name)
	}
	for _, h := range hooks() {
		c := &knftables.Chain{Name: h.name, Type: &h.kind, Hook: &h.at, Priority: &h.priority}
		tx.Add(c)
		tx.Flush(c)
		for _, j := range h.jumps {
			rule(h.name, j)
		}
	}

	addressed := s.addressType() + " . inet_proto . inet_service"
	for _, name := range containers() {
		switch name {
		case clusterIPs:
			tx.Add(&knftables.Set{Name: name, Type: s.addressType()})
		case hairpins:
			tx.Add(&knftables.Set{Name: name, Type: s.addressType() + " . " + addressed})
		case serviceNodePorts, noEndpointPorts:
			tx.Add(&knftables.Map{Name: name, Type: "inet_proto . inet_service : verdict"})
		case serviceIPs, noEndpointIPs, firewallIPs:
			tx.Add(&knftables.Map{Name: name, Type: addressed + " : verdict"})
		default:
			tx.Add(&knftables.Map{Name: name, Type: addressed + " : " + s.addressType() + " . inet_service"})
		}
	}
	ports := &knftables.Set{Name: nodePortIPs, Type: s.addressType()}
	tx.Add(ports)
	tx.Flush(ports)

	destination := s.match() + " daddr . meta l4proto . th dport"
	for i := range longest {
		name := backendOf(i).nft()
		chain(name)
		rule(name, "meta l4proto { tcp, udp, sctp } dnat", s.match(), "addr . port to", destination, "map @"+backendMap(i))
	}
	for n := range longest {
		choices := make([]string, n+1)
		for i := range choices {
			choices[i] = strconv.Itoa(i) + " : goto " + backendOf(i).nft()
		}
		name := drawOf(n + 1).nft()
		chain(name)
		if n == 0 {
			rule(name, "goto", backendOf(0).nft())
		} else {
			rule(name, "numgen random mod", strconv.Itoa(n+1), "vmap {", strings.Join(choices, " , "), "}") // as the tests' table parses it
		}
	}
	rule(rejectChain, "meta l4proto tcp reject with tcp reset")
	rule(rejectChain, "reject")
	rule(endpointsCheck, destination, "vmap @"+noEndpointIPs)
	rule(firewallCheck, destination, "vmap @"+firewallIPs)

	rule(clusterIPCheck, s.match(), "daddr @"+clusterIPs, "goto", rejectChain)
	if len(s.services) > 0 {
		// The node itself serves some of these addresses, like its cluster DNS.
		rule(clusterIPCheck, s.match(), "daddr", braces(s.services), "fib daddr type != local drop")
	}

	if s.masqueradeAll {
		rule(servicesChain, s.match(), "daddr @"+clusterIPs, s.setMark())
	} else if foreign := s.foreign(); foreign != "" {
		// Traffic from outside the cluster that is routed here for a Service's address may be forwarded to another node.
		rule(servicesChain, s.match(), "daddr @"+clusterIPs, foreign, s.setMark())
	}
	rule(servicesChain, destination, "vmap @"+serviceIPs)

	onPort := []any{s.match(), "daddr @" + nodePortIPs}
	check := onPort
	if s.allNodePorts {
		check = []any{s.match(), "daddr !=", s.loopback}
		onPort = append([]any{"fib daddr type local"}, check...)
	} else {
		for _, a := range s.nodePorts {
			tx.Add(&knftables.Element{Set: nodePortIPs, Key: []string{a.String()}})
		}
	}
	rule(servicesChain, append(onPort, "meta l4proto . th dport vmap @"+serviceNodePorts)...)
	rule(nodePortsCheck, append(check, "meta l4proto . th dport vmap @"+noEndpointPorts)...)

	rule(masquerading, "mark and", s.masqueraded(), "!= 0 mark set mark xor", s.masqueraded(), "masquerade fully-random")
	rule(masquerading, "ct status dnat", s.match(), "saddr .", s.match(), "daddr . meta l4proto . th dport @"+hairpins,
		"masquerade fully-random")
	if !s.bridged && len(s.here) > 0 {
		// Pods on one bridge would respond to each other directly, from an address that the client never called.
		rule(masquerading, "ct status dnat", s.match(), "saddr", braces(s.here), s.match(), "daddr", braces(s.here), "masquerade fully-random")
	}
}
