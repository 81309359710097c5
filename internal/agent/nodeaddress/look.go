// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaddress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// Destinations in either family: addresses for documentation, to which nothing is sent.
const (
	world4 = "192.0.2.1:9"
	world6 = "[2001:db8::1]:9"
)

// resolving is the time limit to resolve the server's name.
const resolving = 5 * time.Second

// look reads the links, addresses and routes.
func look(ctx context.Context, o Options) (v View, err error) {
	links, err := device.Whole(netlink.LinkList)
	if err != nil {
		return v, fmt.Errorf("list network links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		v.Links = append(v.Links, Link{Index: a.Index, Name: a.Name, Up: a.Flags&net.FlagUp != 0, Loopback: a.Flags&net.FlagLoopback != 0})
	}
	addresses, err := device.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return v, fmt.Errorf("list network addresses: %w", err)
	}
	for _, a := range addresses {
		ip, ok := netip.AddrFromSlice(a.IP)
		if !ok {
			continue
		}
		out := Address{Link: a.LinkIndex, IP: ip.Unmap(), Passing: a.Flags&unix.IFA_F_DEPRECATED != 0}
		if out.IP.Is6() { // for IPv4, one of these flags means something else
			out.Passing = a.Flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC|unix.IFA_F_DADFAILED|unix.IFA_F_TEMPORARY) != 0
		}
		v.Addresses = append(v.Addresses, out)
	}
	if o.Server != "" {
		v.Routes = append(v.Routes, route(ctx, "udp", o.Server, true)...)
	}
	v.Routes = append(v.Routes, route(ctx, "udp4", world4, o.Server == "")...)
	v.Routes = append(v.Routes, route(ctx, "udp6", world6, o.Server == "")...)
	return v, nil
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
