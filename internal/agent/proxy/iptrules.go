// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// Rules in the syntax of iptables.

// ipTablesPrefix is the prefix of our chains. The rest of a name is what kube-proxy has after KUBE-, if it has the same chain: the proxy
// does not touch kube-proxy's chains.
const ipTablesPrefix = "MORTISE-"

// gatewayChain belongs to package gateway.
const gatewayChain = ipTablesPrefix + "PODS"

func isIPTablesChain(name string) bool {
	return strings.HasPrefix(name, ipTablesPrefix) && name != gatewayChain
}

// table returns the table of a Service's chain: source ranges are checked before the address is translated.
func (c chain) table() string {
	if c.kind == firewall {
		return "mangle"
	}
	return "nat"
}

// iptables returns the name of a Service's chain. Names have at most 28 characters, so it is a hash; a comment in the rules has the
// Service.
func (c chain) iptables() string {
	short := map[kind]string{byCluster: "SVC-", byLocal: "SVL-", external: "EXT-", firewall: "FW-", toEndpoint: "SEP-"}[c.kind]
	hash := sha256.Sum256([]byte(c.of))
	return ipTablesPrefix + short + base32.StdEncoding.EncodeToString(hash[:10])
}

// comment returns a comment with the owner of a rule.
func comment(of string) string {
	const most = 255 // the kernel's limit
	said := harmless(of)
	if said = said[:min(len(said), most)]; said == "" {
		return ""
	}
	return `-m comment --comment "` + said + `" `
}

func (d device) iptables() string {
	if d.begins {
		return "-i " + d.name + "+ "
	}
	return "-i " + d.name + " "
}

// iptables returns the rule's text after its chain, or the texts of several rules. Each has the chain's owner as a comment.
func (r rule) iptables(of string) []string {
	heads := []string{""}
	if len(r.from) > 0 {
		heads = nil
		for _, p := range r.from {
			heads = append(heads, "-s "+p.String()+" ")
		}
	}
	match := comment(of)
	if r.via != (device{}) {
		heads = []string{r.via.iptables()}
	}
	if r.self {
		match += "-m addrtype --src-type LOCAL "
	}
	if r.kept != (keep{}) {
		match += fmt.Sprintf("-m recent --name %s --rcheck --seconds %d --reap ", r.kept.iptables(), r.kept.time/time.Second)
	}
	var out []string
	for _, head := range heads {
		if r.remember != (keep{}) {
			out = append(out, head+match+"-m recent --name "+r.remember.iptables()+" --set")
			continue
		}
		// The first with probability 1/n, the next with 1/(n-1), and so on.
		for i, v := range r.to {
			line := head
			if v.do == translate {
				line += "-p " + r.protocol + " "
			}
			line += match
			out = append(out, line+chance(len(r.to)-i)+v.iptables())
		}
	}
	return out
}

func (v verdict) iptables() string {
	switch v.do {
	case jump:
		return "-g " + v.chain.iptables()
	case translate:
		return "-j DNAT --to-destination " + v.chainKey.String()
	case mark:
		return "-j " + markChain
	case back:
		return "-j RETURN"
	case refuse:
		return "-j " + refuseChain
	}
	return "-j DROP"
}

// iptables returns the name of the client list, which is that of the endpoint's chain.
func (k keep) iptables() string { return chain{toEndpoint, k.of}.iptables() }

// rootsOf returns the chains that contain an element's rule, directly or in a chain below.
func (t *ipTables) rootsOf(e element) []chainKey {
	switch e.container {
	case clusterIPs:
		if t.around.masquerades() && !t.around.ranged(e.addr) {
			return []chainKey{natServices, clusterAddresses}
		}
		return []chainKey{clusterAddresses}
	case serviceIPs:
		return []chainKey{natServices}
	case serviceNodePorts:
		return []chainKey{natNodePorts}
	case noEndpointIPs:
		return []chainKey{noEndpoints}
	case noEndpointPorts:
		return []chainKey{nodePortsWithout}
	case firewallIPs:
		return []chainKey{firewalls}
	case hairpins:
		return []chainKey{hairpinChain}
	}
	return []chainKey{natServices} // the chain of an endpoint by its number
}

// under returns the chain below a root that contains the element's rule.
func (e element) under(root chainKey) chainKey {
	if !e.addr.IsValid() {
		return root
	}
	all := e.addr.AsSlice()
	return chainKey{root.table, bucketName(root.chain, all[len(all)-1])}
}

func bucketName(root string, b byte) string { return fmt.Sprintf("%s-%02x", root, b) }

// isBucket reports whether a chain is one for a last byte: only these have lower-case letters and digits.
func isBucket(chain string) bool {
	i := len(chain) - 3
	return chain[i] == '-' && strings.Trim(chain[i+1:], "0123456789abcdef") == ""
}

// before orders the rules of elements in a chain. Rules for an address alone come before those for its ports, so that a packet is marked
// before its address is translated, and endpoints come in the order of their probabilities.
func (e element) before(o element) int {
	return cmp.Or(e.addr.Compare(o.addr), strings.Compare(e.protocol, o.protocol), cmp.Compare(e.port, o.port),
		strings.Compare(e.container, o.container))
}

// rulesOf returns an element's rules in a chain: at most one.
func (t *ipTables) rulesOf(p chainKey, e element, v verdict) []string {
	port := "-p " + e.protocol + " -m " + e.protocol + " --dport " + strconv.Itoa(int(e.port)) + " "
	if !e.addr.IsValid() {
		return []string{port + comment(v.chain.of) + v.dispatched()}
	}
	host := e.addr.String() + "/" + strconv.Itoa(e.addr.BitLen()) + " "
	to := "-d " + host + port
	if i, is := strings.CutPrefix(e.container, string(backend)+"-"); is {
		return t.drawn(p, e, i, to, v)
	}
	switch e.container {
	case clusterIPs:
		if p.table == natServices.table {
			return []string{"-d " + host + "-j " + foreignChain}
		}
		return []string{"-d " + host + "-j " + refuseChain}
	case hairpins:
		return []string{"-s " + host + to + "-j " + masquerade}
	case serviceIPs:
		if v.chain.kind == drawing {
			return nil // the endpoints' rules do it
		}
		if v.chain.kind == external && t.around.masquerades() && t.around.ranged(e.addr) {
			return []string{to + t.around.unmark(), to + comment(v.chain.of) + v.dispatched()} // its own chain marks packets
		}
	}
	return []string{to + comment(v.chain.of) + v.dispatched()}
}

// drawn returns the rule of an endpoint of a port without its own chains: the first with probability 1/n, the next with 1/(n-1). Since
// there may be tens of thousands of these rules, they have no comment: it would be the largest part of them, and the kernel copies all when
// one changes.
func (t *ipTables) drawn(p chainKey, e element, number, to string, v verdict) []string {
	i, _ := strconv.Atoi(number) // as backendMap writes it
	e.container = serviceIPs
	port := t.listed[p][e].chain
	if port.kind != drawing {
		return nil // another Service has the address and port
	}
	n, _ := strconv.Atoi(port.of) // as drawOf writes it
	if i >= n {
		return nil
	}
	return []string{to + chance(n-i) + "-j DNAT --to-destination " + v.chainKey.String()}
}

// chance returns a match with probability 1/n.
func chance(n int) string {
	if n < 2 {
		return ""
	}
	return "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(n), 'f', 10, 64) + " "
}

// dispatched returns a verdict of an element. It is a jump that returns, because later rules may apply to packets that it does not handle.
func (v verdict) dispatched() string {
	if v.do == jump {
		return "-j " + v.chain.iptables()
	}
	return v.iptables()
}

// where returns the elements of a sequence that satisfy a predicate.
func where[T any](all iter.Seq[T], is func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range all {
			if is(v) && !yield(v) {
				return
			}
		}
	}
}
