// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"
)

// The chains that other chains jump to.
const (
	markChain    = ipTablesPrefix + "MARK-MASQ"
	foreignChain = ipTablesPrefix + "MARK-FOREIGN" // marks traffic that no pod sends
	refuseChain  = ipTablesPrefix + "REFUSE"
	masqChain    = ipTablesPrefix + "MASQ"
	canaryChain  = ipTablesPrefix + "CANARY" // no rule jumps to it; it jumps to a chain that must exist
	masquerade   = "MASQUERADE --random-fully"
)

// The chains that contain rules of elements, or jumps to the chains of last bytes.
var (
	natServices      = chainKey{"nat", ipTablesPrefix + "SERVICES"}
	natNodePorts     = chainKey{"nat", ipTablesPrefix + "NODEPORTS"}
	hairpinChain     = chainKey{"nat", ipTablesPrefix + "HAIRPIN"}
	clusterAddresses = chainKey{"filter", ipTablesPrefix + "CLUSTER-IPS"}
	noEndpoints      = chainKey{"filter", ipTablesPrefix + "NO-ENDPOINTS"}
	nodePortsWithout = chainKey{"filter", ipTablesPrefix + "NODEPORTS"}
	firewalls        = chainKey{"mangle", ipTablesPrefix + "PROXY-FIREWALL"}
)

func roots() []chainKey {
	return []chainKey{natServices, natNodePorts, hairpinChain, clusterAddresses, noEndpoints, nodePortsWithout, firewalls}
}

const (
	inputChain       = ipTablesPrefix + "INPUT"
	forwardChain     = ipTablesPrefix + "FORWARD"
	postroutingChain = ipTablesPrefix + "POSTROUTING"
)

// ipTablesHooks are THE order: the jumps from the kernel's chains to ours, in the form of iptables-save. The order is that of [hooks], but
// source ranges of load balancers are checked in the table mangle, whose rules come before address translation.
func ipTablesHooks() map[string][]string {
	const (
		said  = `-m comment --comment "Services, by Mortise" -j `
		fresh = "-m conntrack --ctstate NEW " + said
	)
	return map[string][]string{
		"mangle": {"PREROUTING " + fresh + firewalls.chain, "OUTPUT " + fresh + firewalls.chain},
		"nat":    {"PREROUTING " + said + natServices.chain, "OUTPUT " + said + natServices.chain, "POSTROUTING " + said + postroutingChain},
		"filter": {"INPUT " + fresh + inputChain, "FORWARD " + fresh + forwardChain, "OUTPUT " + fresh + forwardChain},
	}
}

// skeletonChains are the chains without elements.
func skeletonChains(s surroundings) map[chainKey][]string {
	reply := func(from, to []netip.Prefix) (out []string) {
		for _, f := range from {
			for _, t := range to {
				out = append(out, "-s "+f.String()+" -d "+t.String()+" -m conntrack --ctstate DNAT -j "+masquerade)
			}
		}
		return out
	}
	marked := s.masqueraded()
	setsMark := "-j MARK --set-xmark " + marked + "/" + marked
	var foreign []string
	switch {
	case s.masqueradeAll:
	case s.podsBy != (device{}):
		foreign = append(foreign, s.podsBy.iptables()+"-j RETURN")
	default:
		for _, p := range s.pods {
			foreign = append(foreign, "-s "+p.String()+" -j RETURN")
		}
	}
	leaving := []string{
		"-m mark --mark " + marked + "/" + marked + " -g " + masqChain,
		"-m conntrack --ctstate DNAT -j " + hairpinChain.chain,
	}
	if !s.bridged {
		// Pods on one bridge would respond to each other directly, from an address that the client never called.
		leaving = append(leaving, reply(s.here, s.here)...)
	}
	return map[chainKey][]string{
		{"filter", canaryChain}:   {"-j " + refuseChain},
		{"mangle", canaryChain}:   {"-j " + firewalls.chain},
		{"nat", canaryChain}:      {"-j " + markChain},
		{"nat", markChain}:        {setsMark},
		{"nat", foreignChain}:     append(foreign, setsMark),
		{"nat", masqChain}:        {"-j MARK --xor-mark " + marked, "-j " + masquerade},
		{"nat", postroutingChain}: leaving,
		{"filter", refuseChain}:   {"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT"},
		{"filter", inputChain}:    append(s.toNodePorts(nodePortsWithout.chain, ""), "-j "+noEndpoints.chain),
		{"filter", forwardChain}:  {"-j " + noEndpoints.chain, "-j " + clusterAddresses.chain},
	}
}

// toNodePorts returns the jumps to a chain for node ports, for the addresses of node ports.
func (s surroundings) toNodePorts(chain, local string) []string {
	if s.allNodePorts {
		return []string{"! -d " + s.loopback + " " + local + "-j " + chain}
	}
	out := make([]string, 0, len(s.nodePorts))
	for _, a := range s.nodePorts {
		out = append(out, "-d "+a.String()+" -j "+chain)
	}
	return out
}

// masquerades reports whether some traffic to cluster IPs is masqueraded.
func (s surroundings) masquerades() bool {
	_, known := s.byPods()
	return known || s.masqueradeAll
}

// unmark clears the masquerade mark, and leaves all others.
func (f family) unmark() string { return "-j MARK --set-xmark 0x0/" + f.masqueraded() }

// ranged reports whether the address is in a range whose traffic is marked by one rule, not by a rule for each address.
func (s surroundings) ranged(a netip.Addr) bool {
	return slices.ContainsFunc(s.services, func(r netip.Prefix) bool { return r.Contains(a) })
}

// ranges returns the rules for all packets to Services' ranges.
func (s surroundings) ranges(rule string) []string {
	var out []string
	if s.masquerades() {
		for _, r := range s.services {
			out = append(out, "-d "+r.String()+" "+rule)
		}
	}
	return out
}

// head returns the first rules of a chain. They mark traffic from outside of the cluster to cluster IPs for masquerading, once for each
// range, since rules for each address would be a third of all rules.
func (s surroundings) head(p chainKey) []string {
	if p == natServices {
		return s.ranges("-j " + foreignChain)
	}
	return nil
}

// tail returns the rules after those of the elements in a chain.
func (s surroundings) tail(p chainKey) []string {
	switch p {
	case natServices: // the packet was for none of our Services
		return append(s.ranges(s.unmark()), s.toNodePorts(natNodePorts.chain, "-m addrtype --dst-type LOCAL ")...)
	case clusterAddresses:
		// The node itself serves some of these addresses, like its cluster DNS.
		var out []string
		for _, r := range s.services {
			out = append(out, "-d "+r.String()+" -m addrtype ! --dst-type LOCAL -j DROP")
		}
		return out
	}
	return nil
}
