// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel reads a machine's links and addresses from Linux, and watches their changes.
package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/device"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
)

// Linux is this machine.
type Linux struct{}

// Look implements [nodeaddress.Machine].
func (Linux) Look(ctx context.Context, o nodeaddress.Options) (v nodeaddress.View, err error) {
	links, err := device.Whole(netlink.LinkList)
	if err != nil {
		return v, fmt.Errorf("list network links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		v.Links = append(v.Links, nodeaddress.Link{
			Index: a.Index, Name: a.Name, Up: a.Flags&net.FlagUp != 0, Loopback: a.Flags&net.FlagLoopback != 0,
		})
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
		out := nodeaddress.Address{Link: a.LinkIndex, IP: ip.Unmap(), Passing: a.Flags&unix.IFA_F_DEPRECATED != 0}
		if out.IP.Is6() { // for IPv4, one of these flags means something else
			out.Passing = a.Flags&(unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC|unix.IFA_F_DADFAILED|unix.IFA_F_TEMPORARY) != 0
		}
		v.Addresses = append(v.Addresses, out)
	}
	v.Routes = nodeaddress.Routes(ctx, o)
	return v, nil
}

// Listen implements [nodeaddress.Machine].
func (Linux) Listen(ctx context.Context, run func(ctx context.Context, events <-chan struct{}) error) error {
	return device.Listen(ctx, run)
}
