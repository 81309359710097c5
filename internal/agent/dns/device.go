// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deviceName is the network device's that has the cluster DNS addresses on this node. Nothing is behind it.
const deviceName = "mortise-dns"

// addDevice makes the device with these addresses and no other; one that is there is used.
func addDevice(addresses []netip.Addr) error {
	link, err := netlink.LinkByName(deviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = deviceName
		// A kernel without dummy devices has bridges, where it has pods; one without ports is as good.
		if err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); errors.Is(err, unix.EOPNOTSUPP) {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}
		if err == nil || errors.Is(err, unix.EEXIST) {
			link, err = netlink.LinkByName(deviceName)
		}
	}
	if err != nil {
		return fmt.Errorf("make network device %s: %w", deviceName, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up network device %s: %w", deviceName, err)
	}
	has, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("read addresses of %s: %w", deviceName, err)
	}
	wanted := map[netip.Addr]bool{}
	for _, a := range addresses {
		wanted[a] = true
	}
	for i := range has {
		if a, ok := netip.AddrFromSlice(has[i].IP); ok && !wanted[a.Unmap()] && !a.IsLinkLocalUnicast() {
			if err := netlink.AddrDel(link, &has[i]); err != nil {
				return fmt.Errorf("take address %s from %s: %w", a, deviceName, err)
			}
		}
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD // nobody else is there who could have it
		}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("give address %s to %s: %w", a, deviceName, err)
		}
	}
	return nil
}

// Remove takes away what a DNS that was killed left on this machine.
func Remove() error { return removeDevice() }

// removeDevice takes the device away, if it is there.
func removeDevice() error {
	link, err := netlink.LinkByName(deviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil {
		return fmt.Errorf("remove network device %s: %w", deviceName, err)
	}
	return nil
}
