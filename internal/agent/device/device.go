// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package device maintains the node's own network devices: that of the cluster DNS's addresses, and the tunnel to other nodes. Callers
// choose the type of a device; the package sets addresses and removes devices of any type. [Whole] and [Listen] read the machine's devices,
// addresses and routes from the kernel, and watch their changes.
package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Up brings a device up with these addresses, each as a network of its own, and no others except link-local ones.
func Up(link netlink.Link, addresses []netip.Addr) error {
	name := link.Attrs().Name
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up network device %s: %w", name, err)
	}
	has, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("read addresses of %s: %w", name, err)
	}
	wanted, there := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, a := range addresses {
		wanted[a] = true
	}
	for i := range has {
		a, ok := netip.AddrFromSlice(has[i].IP)
		if a = a.Unmap(); ok && wanted[a] {
			bits, _ := has[i].Mask.Size()
			there[a] = there[a] || bits == a.BitLen()
			continue
		}
		if ok && !a.IsLinkLocalUnicast() {
			if err := netlink.AddrDel(link, &has[i]); err != nil {
				return fmt.Errorf("take address %s from %s: %w", a, name, err)
			}
		}
	}
	for _, a := range addresses {
		if there[a] { // the kernel would send an event for it all the same
			continue
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD // no other host can have the address
		}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("add address %s to %s: %w", a, name, err)
		}
	}
	return nil
}

// Remove removes a device if it exists, and with it its addresses and the routes through it.
func Remove(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove network device %s: %w", name, err)
	}
	return nil
}
