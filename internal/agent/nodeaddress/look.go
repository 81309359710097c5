// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Destinations in either family: addresses for documentation, to which nothing is sent.
const (
	world4 = "192.0.2.1:9"
	world6 = "[2001:db8::1]:9"
)

// resolving is the time limit to resolve the server's name.
const resolving = 5 * time.Second

// Network is a machine of any operating system. It does not know which addresses pass, and has no events.
type Network struct{}

// Look implements [Machine].
func (Network) Look(ctx context.Context, o Options) (v View, err error) {
	links, err := net.Interfaces()
	if err != nil {
		return v, fmt.Errorf("list network links: %w", err)
	}
	for _, l := range links {
		v.Links = append(v.Links, Link{Index: l.Index, Name: l.Name, Up: l.Flags&net.FlagUp != 0, Loopback: l.Flags&net.FlagLoopback != 0})
		addresses, err := l.Addrs()
		if err != nil {
			continue // the link is gone
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					v.Addresses = append(v.Addresses, Address{Link: l.Index, IP: ip.Unmap()})
				}
			}
		}
	}
	v.Routes = Routes(ctx, o)
	return v, nil
}

// Listen implements [Machine]: there are no events.
func (Network) Listen(ctx context.Context, run func(ctx context.Context, events <-chan struct{}) error) error {
	return run(ctx, nil)
}

// Routes queries from which addresses the machine sends to the server and to the internet.
func Routes(ctx context.Context, o Options) (out []Route) {
	if o.Server != "" {
		out = append(out, route(ctx, "udp", o.Server, true)...)
	}
	out = append(out, route(ctx, "udp4", world4, o.Server == "")...)
	return append(out, route(ctx, "udp6", world6, o.Server == "")...)
}

// route queries the source address that the kernel would choose. It sends no packet.
func route(ctx context.Context, network, to string, wanted bool) []Route {
	d := net.Dialer{Timeout: resolving}
	c, err := d.DialContext(ctx, network, to)
	if err != nil {
		return nil
	}
	defer c.Close()
	at, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil
	}
	return []Route{{Source: at.AddrPort().Addr().Unmap(), Wanted: wanted}}
}
