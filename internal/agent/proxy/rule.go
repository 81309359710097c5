// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Rules in plans express the intent; each backend has its own syntax for it.

// kind is the purpose of a chain.
type kind string

const (
	byCluster  kind = "service"  // selects one of the endpoints of a port with the policy Cluster
	byLocal    kind = "local"    // the same with the policy Local
	external   kind = "external" // traffic to other addresses than the cluster IP
	firewall   kind = "firewall" // source ranges of a load balancer
	toEndpoint kind = "endpoint" // one endpoint, for clients with affinity to it
	drawing    kind = "draw"     // selects one of as many endpoints as the name says; shared by all Services
	backend    kind = "backend"  // the endpoint with a number, for Services that share the selection
)

// chain identifies a chain, independent of the backend.
type chain struct {
	kind kind
	of   string // the port or endpoint, or the number of a shared chain
}

// keep identifies the clients with affinity to an endpoint, and the timeout since their last connection.
type keep struct {
	of   string // the endpoint
	time time.Duration
}

// action is the action for a packet.
type action int

const (
	jump      action = iota + 1 // to a chain, without return
	translate                   // to an address
	mark                        // for masquerading, and continue
	back                        // to the calling chain
	drop
	refuse // with a reset or ICMP error
)

// verdict is an action and its arguments. The verdict of an element may be an address alone.
type verdict struct {
	do       action
	chain    chain          // to jump to; for refuse and drop: the port that they are about
	chainKey netip.AddrPort // to translate to
}

// rule is a match and its verdicts. An empty match matches all.
type rule struct {
	from     []netip.Prefix // the source address is in one of them
	via      device         // the incoming interface
	self     bool           // the node itself is the source
	kept     keep           // the source has affinity to this endpoint
	protocol string         // of the translated packet

	remember keep      // the source gets affinity to this endpoint
	to       []verdict // one of them is selected at random, all with the same probability
}

func (r rule) equal(o rule) bool {
	return r.self == o.self && r.via == o.via && r.kept == o.kept && r.protocol == o.protocol && r.remember == o.remember &&
		slices.Equal(r.from, o.from) && slices.Equal(r.to, o.to)
}

// device is a network interface, or a prefix of names; the zero value is none.
type device struct {
	name   string
	begins bool
}

// does returns a rule without a match that does one thing.
func does(v verdict) rule { return rule{to: []verdict{v}} }

// element is a key of a map or set, with the fields that the container requires: address, protocol, port. The key of hairpins has the
// address twice.
type element struct {
	container string
	addr      netip.Addr
	protocol  string
	port      uint16
}

func (e element) compare(o element) int {
	if c := strings.Compare(e.container, o.container); c != 0 {
		return c
	}
	if c := e.addr.Compare(o.addr); c != 0 {
		return c
	}
	if c := strings.Compare(e.protocol, o.protocol); c != 0 {
		return c
	}
	return int(e.port) - int(o.port)
}

// view has the facts of the node that plans depend on.
type view struct {
	family
	node, zone string
	pods       []netip.Prefix // of the cluster, in this family
	podsBy     device         // the interface of pods' traffic, whatever its addresses; none: pods are identified by their addresses
	addresses  []netip.Addr   // the node's own
	plain      int            // the maximum number of endpoints of a port without its own chains
}

// surroundings are the facts that the skeleton depends on.
type surroundings struct {
	view
	services      []netip.Prefix // the ranges of Services' addresses, in this family
	nodePorts     []netip.Addr   // the addresses for node ports
	allNodePorts  bool           // node ports are on all addresses: nodePorts is unused
	here          []netip.Prefix // of this node's pods, in this family
	bridged       bool           // traffic between them passes the kernel's rules
	masqueradeAll bool
}

// family is one of the two IP families.
type family struct {
	v6       bool
	loopback string
	ip       corev1.IPFamily
	network  string // of a listener
	mark     string // of packets to masquerade, if it is not kube-proxy's
}

// masqueraded returns the masquerade mark.
func (f family) masqueraded() string { return cmp.Or(f.mark, masqueradeMark) }

// byPods returns the match of pods' traffic, if it is known.
func (v view) byPods() (rule, bool) {
	if v.podsBy != (device{}) {
		return rule{via: v.podsBy}, true
	}
	return rule{from: v.pods}, len(v.pods) > 0
}

// families are both, in the order of synchronization.
func families() []family {
	return []family{
		{loopback: "127.0.0.0/8", ip: corev1.IPv4Protocol, network: "tcp4"},
		{v6: true, loopback: "::1", ip: corev1.IPv6Protocol, network: "tcp6"},
	}
}

func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Is6() == f.v6 }
