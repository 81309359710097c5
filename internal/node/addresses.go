// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
)

// FindAddresses returns the addresses at which other hosts reach the node: the one from which it sends to a server, or to the internet.
// They may change.
func (p *Plan) FindAddresses(ctx context.Context, server string) (*nodeaddress.Addresses, error) {
	var machine nodeaddress.Machine = nodeaddress.Network{}
	if p.Containers != nil {
		machine = p.Containers.Addresses()
	}
	addresses, err := nodeaddress.Find(ctx, machine, nodeaddress.Options{
		Server: server, Both: len(p.PodCIDRs) == 2, Pods: p.PodCIDRs, Services: p.ServiceCIDRs, Logger: p.Logger.With("part", "node"),
	})
	if err != nil {
		return nil, fmt.Errorf("find the node's addresses: %w", err)
	}
	return addresses, nil
}

// Reachable returns the addresses of a node with the given first address. If pods have both IP families, so do nodes: each is the gateway
// to its pods.
func Reachable(first string, pods []netip.Prefix) []string {
	out := []string{first}
	if a, err := netip.ParseAddr(first); err == nil && len(pods) == 2 {
		if other := beside(a.Unmap(), onLinks()); other.IsValid() {
			out = append(out, other.String())
		}
	}
	return out
}

// beside returns the first address of the other family on the link with the given address, except addresses that other hosts cannot reach;
// invalid if there is none.
func beside(one netip.Addr, links [][]netip.Addr) (found netip.Addr) {
	for _, link := range links {
		var other netip.Addr
		has := false
		for _, a := range link {
			has = has || a == one
			if !other.IsValid() && a.Is4() != one.Is4() && a.IsGlobalUnicast() {
				other = a
			}
		}
		if has && other.IsValid() {
			return other
		}
	}
	return found
}

// onLinks returns the addresses of each of this machine's links.
func onLinks() (out [][]netip.Addr) {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, l := range links {
		var all []netip.Addr
		addresses, err := l.Addrs()
		if err != nil {
			continue // the link is gone
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					all = append(all, ip.Unmap())
				}
			}
		}
		out = append(out, all)
	}
	return out
}
