// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// Rules in the syntax of nftables.

// tableFamily returns nft's family of a table, match the name of the header in a rule, addressType the type of an address.
func (f family) tableFamily() knftables.Family {
	if f.v6 {
		return knftables.IPv6Family
	}
	return knftables.IPv4Family
}

func (f family) match() string {
	if f.v6 {
		return "ip6"
	}
	return "ip"
}

func (f family) addressType() string {
	if f.v6 {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

// foreign returns a match of traffic that no pod sends; empty if the pods' addresses are unknown.
func (v view) foreign() string {
	switch {
	case v.podsBy != (device{}):
		return "iifname != " + v.podsBy.nft()
	case len(v.pods) == 0:
		return ""
	}
	return v.match() + " saddr != " + braces(v.pods)
}

// braces returns an anonymous set, or its only element.
func braces(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		if texts[i] = p.String(); p.IsSingleIP() {
			texts[i] = p.Addr().String()
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

const rejectVerdict = "goto " + rejectChain

// setMark marks a packet for masquerading.
func (f family) setMark() string { return "mark set mark or " + f.masqueraded() }

func (d device) nft() string {
	if d.begins {
		return strconv.Quote(d.name + "*")
	}
	return strconv.Quote(d.name)
}

// nft returns the rule's text, or the texts of several rules.
func (r rule) nft(f family) []string {
	head := ""
	if len(r.from) > 0 {
		head = f.match() + " saddr " + braces(r.from) + " "
	}
	if r.via != (device{}) {
		head += "iifname " + r.via.nft() + " "
	}
	if r.self {
		head += "fib saddr type local "
	}
	if r.kept != (keep{}) {
		head += f.match() + " saddr @" + r.kept.nft() + " "
	}
	if r.remember != (keep{}) {
		return []string{head + "update @" + r.remember.nft() + " { " + f.match() + " saddr }"}
	}
	does := func(v verdict) string {
		if v.do == translate {
			return "meta l4proto " + r.protocol + " dnat to " + v.chainKey.String()
		}
		if v.do == mark {
			return f.setMark()
		}
		return v.nft()
	}
	if len(r.to) > longest && r.protocol != "" {
		places := make([]string, len(r.to))
		for i, v := range r.to {
			places[i] = fmt.Sprintf("%d : %s . %d", i, v.chainKey.Addr(), v.chainKey.Port())
		}
		return []string{fmt.Sprintf("%smeta l4proto %s dnat %s addr . port to numgen random mod %d map { %s }",
			head, r.protocol, f.match(), len(r.to), strings.Join(places, ", "))}
	}
	// The first with probability 1/n, the next with 1/(n-1), and so on.
	out := make([]string, len(r.to))
	for i, v := range r.to {
		if left := len(r.to) - i; left > 1 {
			out[i] = head + "numgen random mod " + strconv.Itoa(left) + " 0 " + does(v)
		} else {
			out[i] = head + does(v)
		}
	}
	return out
}

// nft returns a verdict, without the address to translate to.
func (v verdict) nft() string {
	switch v.do {
	case jump:
		return "goto " + v.chain.nft()
	case back:
		return "return"
	case drop:
		return "drop"
	case refuse:
		return rejectVerdict
	}
	return ""
}

// keys returns an element's keys in nft's form.
func (e element) keys() []string {
	port := strconv.Itoa(int(e.port))
	switch e.container {
	case clusterIPs:
		return []string{e.addr.String()}
	case serviceNodePorts, noEndpointPorts:
		return []string{e.protocol, port}
	case hairpins:
		a := e.addr.String()
		return []string{a, a, e.protocol, port}
	}
	return []string{e.addr.String(), e.protocol, port}
}

// nft returns a chain's name. Only names of Services' chains have a slash.
func (c chain) nft() string {
	if c.kind == drawing || c.kind == backend {
		return string(c.kind) + "-" + c.of
	}
	return string(c.kind) + "-" + named(c.of)
}

// isOurs reports whether a chain or set belongs to a Service, not to the skeleton.
func isOurs(name string) bool { return strings.Contains(name, "/") }

// nft returns the name of a set. A set's timeout cannot be changed, so it is part of the name.
func (k keep) nft() string {
	return "affinity-" + strconv.Itoa(int(k.time/time.Second)) + "-" + named(k.of)
}

func (k keep) compare(o keep) int {
	return cmp.Or(strings.Compare(k.of, o.of), cmp.Compare(k.time, o.time))
}

// named makes a recognizable name that is short enough: a hash precedes the text. No name has a colon.
func named(text string) string {
	const prefix = 24 // length of the longest prefix, with reserve
	text = strings.ReplaceAll(harmless(text), ":", ".")
	hash := sha256.Sum256([]byte(text))
	name := base32.StdEncoding.EncodeToString(hash[:5]) + "-" + text
	if most := knftables.NameLengthMax - prefix; len(name) > most {
		name = name[:most-3] + "..."
	}
	return name
}

// harmless keeps only the characters of objects' names and addresses.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/_.:-", r) {
			return r
		}
		return '_'
	}, text)
}
