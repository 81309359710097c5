// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// deviceName is the name of the device that has the addresses. It tells which of them are ours after a restart, too.
const deviceName = "mortise-lb"

// Remove removes all addresses from the machine.
func Remove() error { return assign(nil, 0) }

// assign sets the addresses of load balancers on this machine, for a time; 0: for ever. It removes all others that it ever set.
func assign(want []netip.Addr, lifetime time.Duration) error {
	has, err := assigned()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range has {
		if a.Is6() && !slices.Contains(want, a) {
			errs = append(errs, withdraw(a))
		}
	}
	if len(want) == 0 {
		if len(has) > 0 || exists() {
			errs = append(errs, device.Remove(deviceName))
		}
		return errors.Join(errs...)
	}
	if lifetime == 0 || !slices.Equal(has, want) {
		if err := device.AddDummy(deviceName, want); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	link, err := netlink.LinkByName(deviceName)
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("find device %s: %w", deviceName, err))...)
	}
	for _, a := range want {
		errs = append(errs, set(link, a, lifetime))
		if a.Is6() {
			if on, err := linkOf(a); err != nil {
				errs = append(errs, err)
			} else {
				errs = append(errs, set(on, a, lifetime))
			}
		}
	}
	return errors.Join(errs...)
}

// exists reports whether there is the device.
func exists() bool {
	_, err := netlink.LinkByName(deviceName)
	return err == nil
}

// assigned returns the addresses on the device, in order.
func assigned() (out []netip.Addr, err error) {
	link, err := netlink.LinkByName(deviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find device %s: %w", deviceName, err)
	}
	all, err := device.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("read addresses of %s: %w", deviceName, err)
	}
	for i := range all {
		if a, ok := netip.AddrFromSlice(all[i].IP); ok && !a.Unmap().IsLinkLocalUnicast() {
			out = append(out, a.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

// set adds an address to a link, or extends its time there. The machine never sends from an IPv6 address unless it answers: it is
// deprecated from the beginning.
func set(link netlink.Link, a netip.Addr, lifetime time.Duration) error {
	address := &netlink.Addr{IPNet: host(a)}
	seconds := int(lifetime / time.Second)
	if lifetime > 0 {
		address.ValidLft, address.PreferedLft = seconds, seconds
	}
	if a.Is6() {
		address.Flags = unix.IFA_F_NODAD
		address.PreferedLft = 0
		if lifetime == 0 {
			address.ValidLft = int(^uint32(0) >> 1) // with a preferred lifetime of zero, "for ever" has to be said
		}
	}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("add address %s to %s: %w", a, link.Attrs().Name, err)
	}
	return nil
}

// withdraw removes an address from the link of its network.
func withdraw(a netip.Addr) error {
	links, err := device.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list network links: %w", err)
	}
	for _, l := range links {
		err := netlink.AddrDel(l, &netlink.Addr{IPNet: host(a)})
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("take address %s from %s: %w", a, l.Attrs().Name, err)
		}
	}
	return nil
}

func host(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// linkOf returns the link of an address's network: the one with an address of the same network, else the one of the default route.
func linkOf(a netip.Addr) (netlink.Link, error) {
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := device.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	best, bits := 0, 0
	for i := range all {
		n, _ := all[i].Mask.Size()
		if n < a.BitLen() && n > bits && all[i].Contains(a.AsSlice()) {
			best, bits = all[i].LinkIndex, n
		}
	}
	if best == 0 {
		routes, err := device.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			if d := routes[i].Dst; (d == nil || d.IP.IsUnspecified()) && routes[i].LinkIndex != 0 {
				best = routes[i].LinkIndex
				break
			}
		}
	}
	if best == 0 {
		return nil, fmt.Errorf("no link leads to the network of %s", a)
	}
	link, err := netlink.LinkByIndex(best)
	if err != nil {
		return nil, fmt.Errorf("find the link to the network of %s: %w", a, err)
	}
	return link, nil
}
