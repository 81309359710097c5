// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"net/netip"
	"slices"
	"strings"
)

// View is what there is on a machine.
type View struct {
	Links     []Link    // in the kernel's order
	Addresses []Address // in the kernel's order
	Routes    []Route   // the most wanted first
}

// Link is a network device.
type Link struct {
	Index        int
	Name         string
	Up, Loopback bool
}

// Address is one of a link's.
type Address struct {
	Link    int
	IP      netip.Addr
	Passing bool // it may not be used yet, or not much longer: tentative, a duplicate, deprecated, or temporary
}

// Route is the route that the kernel would choose for a packet.
type Route struct {
	Source netip.Addr
	Wanted bool // to where the node must get; others are as good as any
}

// ours begins the names of the links that Mortise makes; pairs are those that lead to containers.
const (
	ours  = "mortise"
	pairs = "veth"
)

// Pick says which addresses a node has that had those of now before. The first is that by which it sends; an IPv6 address that it has
// is kept while it is there, since the kernel lists the newest first. Nothing is picked that is the link's own, or a Service's, or on a
// link of Mortise's; a pod's only if the kernel itself sends by it: a machine may be a pod of another cluster.
//
// What is lost is held: held says that some of the addresses are there no more, or are not what they should be, and are to go if that
// does not change. With nothing to take its place, all stays as it is.
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

// first is the address by which others reach the machine, with its link; zero is none of consequence. It is sure if it is that by which
// the node must send, or one that it has.
func (v View) first(now []netip.Addr, o Options) (ip netip.Addr, link int, sure bool) {
	for _, route := range v.Routes {
		if route.Source.IsLoopback() && !route.Wanted {
			continue
		}
		i := slices.IndexFunc(v.Addresses, func(a Address) bool { return a.IP == route.Source })
		if route.Source.IsLoopback() || i >= 0 && v.link(v.Addresses[i].Link).Loopback {
			return route.Source, 0, true // the server is on this machine
		}
		if i < 0 {
			continue
		}
		link := v.Addresses[i].Link
		if ip := v.on(link, route.Source.Is4(), now, o); ip.IsValid() {
			return ip, link, route.Wanted || len(now) == 0
		}
	}
	if len(now) > 0 { // what it does not send by, of containers perhaps, is no better than what it had
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

// on is the address of a family by which others reach the machine on a link; invalid if there is none.
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

// usable says whether others may reach the machine by an address, now and for long.
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
