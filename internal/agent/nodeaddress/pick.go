// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"net/netip"
	"slices"
	"strings"
)

// View is the state of a machine's network.
type View struct {
	Links     []Link    // in the kernel's order
	Addresses []Address // in the kernel's order
	Routes    []Route   // the preferred first
}

// Link is a network device.
type Link struct {
	Index        int
	Name         string
	Up, Loopback bool
}

// Address is an address of a link.
type Address struct {
	Link    int
	IP      netip.Addr
	Passing bool // not usable yet, or not for long: tentative, a duplicate, deprecated, or temporary
}

// Route is the route that the kernel chooses for a packet.
type Route struct {
	Source netip.Addr
	Wanted bool // to a destination that the node must reach; any address will do for the others
}

// ours are the name prefixes of Mortise's links; pairs are those of links to containers.
const (
	ours  = "mortise"
	pairs = "veth"
)

// Pick selects the addresses of a node from a machine's, given its current ones. The first is the source address of its packets. The node
// keeps an IPv6 address while it exists, since the kernel lists the newest first. Pick never selects a link-local address, a Service's
// address, or an address on one of Mortise's links, and a pod's address only if the kernel itself sends by it: a machine may be a pod of
// another cluster.
//
// It holds lost addresses: held reports that some of the addresses no longer exist, or are no longer right, and must go if that does not
// change. Without a replacement, all addresses stay.
func Pick(now []netip.Addr, v View, o Options) (next []netip.Addr, held bool) {
	if slices.Equal(now, []netip.Addr{nowhere}) {
		now = nil
	}
	first, link, sure := v.first(now, o)
	switch {
	case !first.IsValid():
		return now, false
	case len(now) > 0 && (!sure || first.Is4() != now[0].Is4()):
		return now, true
	}
	next = []netip.Addr{first}
	if !o.Both || link == 0 {
		return next, false
	}
	if other := v.on(link, !first.Is4(), now, o); other.IsValid() {
		return append(next, other), false
	}
	if len(now) > 1 {
		return append(next, now[1]), true
	}
	return next, false
}

// first returns the address at which other hosts reach the machine, with its link; zero: there is none. It is sure if it is the source
// address for the required destination, or a current address.
func (v View) first(now []netip.Addr, o Options) (ip netip.Addr, link int, sure bool) {
	for _, route := range v.Routes {
		if route.Source.IsLoopback() && !route.Wanted {
			continue
		}
		i := slices.IndexFunc(v.Addresses, func(a Address) bool { return a.IP == route.Source })
		if route.Source.IsLoopback() || i >= 0 && v.link(v.Addresses[i].Link).Loopback {
			return route.Source, 0, true // the server runs on this machine
		}
		if i < 0 {
			continue
		}
		link := v.Addresses[i].Link
		if ip := v.on(link, route.Source.Is4(), now, o); ip.IsValid() {
			return ip, link, route.Wanted || len(now) == 0
		}
	}
	if len(now) > 0 { // an address that it does not send by, perhaps of containers, is no better than the current one
		for _, a := range v.Addresses {
			if a.IP == now[0] && v.usable(a, o) {
				return a.IP, a.Link, true
			}
		}
		return netip.Addr{}, 0, false
	}
	for _, four := range []bool{true, false} {
		for _, l := range v.Links {
			if strings.HasPrefix(l.Name, pairs) {
				continue
			}
			if ip := v.on(l.Index, four, nil, o); ip.IsValid() {
				return ip, l.Index, false
			}
		}
	}
	return netip.Addr{}, 0, false
}

// on returns the address of a family at which other hosts reach the machine on a link; invalid: there is none.
func (v View) on(link int, four bool, now []netip.Addr, o Options) netip.Addr {
	var there []netip.Addr
	for _, a := range v.Addresses {
		if a.Link == link && a.IP.Is4() == four && v.usable(a, o) {
			there = append(there, a.IP)
		}
	}
	sends := func(a netip.Addr) bool {
		return slices.ContainsFunc(v.Routes, func(w Route) bool { return w.Source == a })
	}
	kept := func(a netip.Addr) bool { return slices.Contains(now, a) }
	others := func(a netip.Addr) bool { return !within(a, o.Pods) }
	order := []func(netip.Addr) bool{kept, sends, others}
	if four {
		order = []func(netip.Addr) bool{sends, kept, others}
	}
	for _, is := range order {
		if i := slices.IndexFunc(there, is); i >= 0 {
			return there[i]
		}
	}
	return netip.Addr{}
}

// usable reports whether other hosts may use an address, now and for long.
func (v View) usable(a Address, o Options) bool {
	l := v.link(a.Link)
	return l.Up && !l.Loopback && !strings.HasPrefix(l.Name, ours) && !a.Passing && a.IP.IsGlobalUnicast() && !within(a.IP, o.Services)
}

func (v View) link(index int) Link {
	if i := slices.IndexFunc(v.Links, func(l Link) bool { return l.Index == index }); i >= 0 {
		return v.Links[i]
	}
	return Link{}
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
