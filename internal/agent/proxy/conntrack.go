// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel sends all packets of a flow to the destination of the first. A TCP connection ends with its endpoint; a UDP client that never
// changes its port would send to a removed endpoint for ever. So the proxy deletes flows to endpoints that no longer serve, and flows to a
// Service that began before it had rules.

// backends are the valid destinations of the flows of one UDP port.
type backends struct {
	frontends []netip.AddrPort
	nodePort  uint16
	to        map[netip.AddrPort]bool
}

func backendsOf(p *servicePort, all []endpoint) backends {
	out := backends{to: map[netip.AddrPort]bool{}}
	for _, e := range all {
		if e.serving { // regardless of policy and topology, which apply to new flows
			out.to[e.address] = true
		}
	}
	for _, list := range [][]netip.Addr{{p.cluster}, p.external, p.balanced} {
		for _, a := range list {
			out.frontends = append(out.frontends, netip.AddrPortFrom(a, uint16(p.port)))
		}
	}
	if len(out.to) > 0 { // without endpoints, the filter would match that port of other hosts as well
		out.nodePort = uint16(p.nodePort)
	}
	return out
}

// frontends maps the addresses that clients send UDP to to their backends.
type frontends struct {
	addresses map[netip.AddrPort]map[netip.AddrPort]bool
	nodePorts map[uint16]map[netip.AddrPort]bool
}

func newFrontends() *frontends {
	return &frontends{addresses: map[netip.AddrPort]map[netip.AddrPort]bool{}, nodePorts: map[uint16]map[netip.AddrPort]bool{}}
}

func (f *frontends) add(list []backends) {
	for _, b := range list {
		for _, a := range b.frontends {
			f.addresses[a] = b.to
		}
		if b.nodePort != 0 {
			f.nodePorts[b.nodePort] = b.to
		}
	}
}

// stale reports whether a flow goes to a Service, but to none of its endpoints.
func (f *frontends) stale(flow *netlink.ConntrackFlow) bool {
	if flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	dst, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	src, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	from := netip.AddrPortFrom(src.Unmap(), flow.Reverse.SrcPort)
	if to, is := f.addresses[netip.AddrPortFrom(dst.Unmap(), flow.Forward.DstPort)]; is {
		return !to[from]
	}
	if to, is := f.nodePorts[flow.Forward.DstPort]; is {
		return !to[from]
	}
	return false
}

// MatchConntrackFlow implements [netlink.CustomConntrackFilter].
func (f *frontends) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool { return f.stale(flow) }

// forget deletes the stale flows, and returns their number.
func forget(fam family, f *frontends) (uint, error) {
	if len(f.addresses) == 0 {
		return 0, nil
	}
	in := netlink.InetFamily(unix.AF_INET)
	if fam.v6 {
		in = unix.AF_INET6
	}
	var sum uint
	for range 5 { // an interrupted dump returns an error
		n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, in, f)
		sum += n
		if errors.Is(err, unix.EINTR) || errors.Is(err, netlink.ErrDumpInterrupted) {
			continue
		}
		if err != nil {
			return sum, fmt.Errorf("forget %s flows: %w", fam.ip, err)
		}
		return sum, nil
	}
	return sum, nil
}
