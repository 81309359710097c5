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

// Rules as plans have them say what is meant; each backend has words of its own for it.

// kind is what a chain is for.
type kind string

const (
	byCluster  kind = "service"  // one of the endpoints of a port, by the policy Cluster
	byLocal    kind = "local"    // the same by the policy Local
	external   kind = "external" // what comes to other addresses than the Service's own
	firewall   kind = "firewall" // who may reach a load balancer
	toEndpoint kind = "endpoint" // one endpoint, of clients that keep to it
	drawing    kind = "draw"     // one of as many endpoints as the name says; all Services share it
	backend    kind = "backend"  // the endpoint of a number, of Services that share the drawing
)

// chain is a chain's name, before a backend writes it its way.
type chain struct {
	kind kind
	of   string // the port or endpoint, or the number of a shared one
}

// keep is the clients that keep to an endpoint, and for how long after their last call.
type keep struct {
	of   string // the endpoint
	time time.Duration
}

// action is what is done with a packet.
type action int

const (
	jump      action = iota + 1 // to a chain, not to come back
	translate                   // to a place
	mark                        // for masquerading, and on
	back                        // to the chain before
	drop
	refuse // and send a reset or ICMP error
)

// verdict is an action and what it needs. The one of an element may be a place alone.
type verdict struct {
	do       action
	chain    chain          // to jump to; of refusal and drop: the port that they are about
	chainKey netip.AddrPort // to translate to
}

// rule is a match, and what happens to what it matches. A match that is empty is true.
type rule struct {
	from     []netip.Prefix // who calls is in one of them
	via      device         // who calls comes by it
	self     bool           // the node itself calls
	kept     keep           // who calls keeps to this endpoint
	protocol string         // of what is translated

	remember keep      // who calls keeps to this endpoint from now on
	to       []verdict // one of them is drawn, each as likely as the others
}

func (r rule) equal(o rule) bool {
	return r.self == o.self && r.via == o.via && r.kept == o.kept && r.protocol == o.protocol && r.remember == o.remember &&
		slices.Equal(r.from, o.from) && slices.Equal(r.to, o.to)
}

// device is a network interface, or those whose names begin so; the zero value is none.
type device struct {
	name   string
	begins bool
}

// does is a rule without a match that does one thing.
func does(v verdict) rule { return rule{to: []verdict{v}} }

// element is a key of a map or set, with what the container asks for of: address, protocol, port. That of hairpins has the address twice.
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

// view is what plans depend on beside the Service: the node that they are made for.
type view struct {
	family
	node, zone string
	pods       []netip.Prefix // of the cluster, in this family
	podsBy     device         // what pods send comes by it, whatever their addresses; none: pods are those of these addresses
	addresses  []netip.Addr   // the node's own
	plain      int            // a port of so many endpoints, and no wishes, wants no chain of its own
}

// surroundings are what the skeleton depends on.
type surroundings struct {
	view
	services      []netip.Prefix // the ranges of the Services' addresses, in this family
	nodePorts     []netip.Addr   // that node ports are on
	allNodePorts  bool           // on all: nodePorts is not looked at
	here          []netip.Prefix // of this node's pods, in this family
	bridged       bool           // answers between them pass the kernel's rules
	masqueradeAll bool
}

// family is one of the two IP families.
type family struct {
	v6       bool
	loopback string
	ip       corev1.IPFamily
	network  string // of a listener
	mark     string // of what is to be masqueraded, if it is not kube-proxy's
}

// masqueraded is the mark of what is to be masqueraded.
func (f family) masqueraded() string { return cmp.Or(f.mark, masqueradeMark) }

// byPods is the match of what pods send, if they are known.
func (v view) byPods() (rule, bool) {
	if v.podsBy != (device{}) {
		return rule{via: v.podsBy}, true
	}
	return rule{from: v.pods}, len(v.pods) > 0
}

// families are both, in the order in which they are synchronized.
func families() []family {
	return []family{
		{loopback: "127.0.0.0/8", ip: corev1.IPv4Protocol, network: "tcp4"},
		{v6: true, loopback: "::1", ip: corev1.IPv6Protocol, network: "tcp6"},
	}
}

func (f family) has(a netip.Addr) bool { return a.IsValid() && a.Is6() == f.v6 }
