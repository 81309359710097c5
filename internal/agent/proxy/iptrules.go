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

// How iptables says it.

// ipTablesPrefix begins the names of our chains. What follows is what kube-proxy has after KUBE-, where it has the same: those are left
// alone.
const ipTablesPrefix = "MORTISE-"

// gatewayChain is not the proxy's, but that of package gateway.
const gatewayChain = ipTablesPrefix + "PODS"

func isIPTablesChain(name string) bool {
	return strings.HasPrefix(name, ipTablesPrefix) && name != gatewayChain
}

// table is the table of a Service's chain: source ranges are checked before the address is translated.
func (c chain) table() string {
	if c.kind == firewall {
		return "mangle"
	}
	return "nat"
}

// iptables is the name of a chain of a Service. It has 28 letters at most, so that a hash has to do; rules have the Service in a comment.
func (c chain) iptables() string {
	short := map[kind]string{byCluster: "SVC-", byLocal: "SVL-", external: "EXT-", firewall: "FW-", toEndpoint: "SEP-"}[c.kind]
	hash := sha256.Sum256([]byte(c.of))
	return ipTablesPrefix + short + base32.StdEncoding.EncodeToString(hash[:10])
}

// comment says whose a rule is.
func comment(of string) string {
	const most = 255 // what the kernel keeps
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

// iptables is the rule's text after its chain, or those of all that it takes. The chain's owner is said in each.
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
		// The first by one in n, the next by one in what remains.
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

// iptables is the name of the list of clients, which is that of the endpoint's chain.
func (k keep) iptables() string { return chain{toEndpoint, k.of}.iptables() }

// rootsOf are the chains that an element is a rule of, or below which it is.
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
	return []chainKey{natServices} // the endpoint of a number
}

// under is the chain below a root where the element is a rule.
func (e element) under(root chainKey) chainKey {
	if !e.addr.IsValid() {
		return root
	}
	all := e.addr.AsSlice()
	return chainKey{root.table, bucketName(root.chain, all[len(all)-1])}
}

func bucketName(root string, b byte) string { return fmt.Sprintf("%s-%02x", root, b) }

// isBucket tells the chains of a last byte: theirs are the only small letters and digits.
func isBucket(chain string) bool {
	i := len(chain) - 3
	return chain[i] == '-' && strings.Trim(chain[i+1:], "0123456789abcdef") == ""
}

// before is the order of the rules of elements in a chain. What an address alone is for comes before what its ports are, so that it is
// marked before it is replaced, and the first of its endpoints is drawn before the next.
func (e element) before(o element) int {
	return cmp.Or(e.addr.Compare(o.addr), strings.Compare(e.protocol, o.protocol), cmp.Compare(e.port, o.port),
		strings.Compare(e.container, o.container))
}

// rulesOf are an element's rules in a chain: one, if any.
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
			return nil // the endpoints' rules draw
		}
		if v.chain.kind == external && t.around.masquerades() && t.around.ranged(e.addr) {
			return []string{to + t.around.unmark(), to + comment(v.chain.of) + v.dispatched()} // its own chain says who is marked
		}
	}
	return []string{to + comment(v.chain.of) + v.dispatched()}
}

// drawn is the rule of an endpoint of a port that has no chains of its own: the first is taken by one in n, the next by one in what
// remains. There are ten thousands of them, so that they have no comment: it would be the most of them, and the kernel looks at all when
// one changes.
func (t *ipTables) drawn(p chainKey, e element, number, to string, v verdict) []string {
	i, _ := strconv.Atoi(number) // as backendMap says it
	e.container = serviceIPs
	port := t.listed[p][e].chain
	if port.kind != drawing {
		return nil // another Service has the address and port
	}
	n, _ := strconv.Atoi(port.of) // as drawOf says it
	if i >= n {
		return nil
	}
	return []string{to + chance(n-i) + "-j DNAT --to-destination " + v.chainKey.String()}
}

// chance is a match for one packet in n.
func chance(n int) string {
	if n < 2 {
		return ""
	}
	return "-m statistic --mode random --probability " + strconv.FormatFloat(1/float64(n), 'f', 10, 64) + " "
}

// dispatched is a verdict of an element. A jump comes back: others may have a say in what is not done there.
func (v verdict) dispatched() string {
	if v.do == jump {
		return "-j " + v.chain.iptables()
	}
	return v.iptables()
}

// where are those of a sequence that are so.
func where[T any](all iter.Seq[T], is func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range all {
			if is(v) && !yield(v) {
				return
			}
		}
	}
}
