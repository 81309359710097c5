// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// The tunnel's device, its network identifier, and IANA's port for VXLAN.
const (
	Device  = "mortise-vxlan"
	network = 109
	port    = 4789
)

// tunnel is the configuration of a node's VXLAN. It is derived from the Node objects, so that nodes need not publish anything.
type tunnel struct {
	address netip.Addr                  // of this node
	ranges  []netip.Prefix              // of its pods
	remotes map[netip.Prefix]netip.Addr // the nodes' addresses by their pod ranges
}

// tunnelOf returns the tunnel of a node. Nodes are reached by addresses of the family of the node's first one, whatever the families of
// their pods.
func tunnelOf(self string, nodes []*corev1.Node) (t tunnel, ok bool) {
	for _, n := range nodes {
		if n.Name != self {
			continue
		}
		if at := internal(n); len(at) > 0 {
			t.address, ok = at[0], true
		}
		t.ranges = ranges(n)
	}
	t.remotes = wanted(self, nodes, func(a netip.Addr, _ netip.Prefix) bool { return a.Is4() == t.address.Is4() })
	return t, ok && len(t.ranges) > 0
}

// gateway returns the address of a node in the tunnel: the first one of its range, which no pod has.
func gateway(p netip.Prefix) netip.Addr { return p.Masked().Addr() }

// hardware returns the tunnel's hardware address on a node.
func hardware(node netip.Addr) net.HardwareAddr {
	tail := node.AsSlice()
	if node.Is6() {
		sum := sha256.Sum256(tail)
		tail = sum[:4]
	}
	return append(net.HardwareAddr{0x0a, 0x6d}, tail...) // locally administered
}

// overhead is the size that the tunnel adds to each packet.
func overhead(node netip.Addr) int {
	if node.Is6() {
		return 70
	}
	return 50
}

// TunnelMTU returns the MTU of pods for packets through the tunnel of a node with this address.
func TunnelMTU(node netip.Addr) (int, error) {
	links, err := device.Whole(netlink.LinkList)
	if err != nil {
		return 0, fmt.Errorf("list network links: %w", err)
	}
	for _, l := range links {
		has, err := device.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(l, netlink.FAMILY_ALL) })
		if err != nil {
			return 0, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range has {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == node {
				return l.Attrs().MTU - overhead(node), nil
			}
		}
	}
	return 0, fmt.Errorf("no network link has the node's address %s", node)
}

// apply sets the device and its forwarding entries. It returns the errors of single entries, and sets all others.
func (t tunnel) apply() []error {
	link, err := t.device()
	if err != nil {
		return []error{err}
	}
	var errs []error
	index := link.Attrs().Index
	keep := map[string]bool{}
	set := func(what string, n *netlink.Neigh) {
		n.LinkIndex, n.State = index, netlink.NUD_PERMANENT
		keep[n.IP.String()+" "+n.HardwareAddr.String()] = true
		if err := netlink.NeighSet(n); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	want := map[netip.Prefix]netip.Addr{}
	for p, via := range t.remotes {
		at := hardware(via)
		set("add forwarding entry of node "+via.String(),
			&netlink.Neigh{Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, IP: via.AsSlice(), HardwareAddr: at})
		family := unix.AF_INET6
		if p.Addr().Is4() {
			family = unix.AF_INET
		}
		set("add neighbour entry of the gateway to "+p.String(), &netlink.Neigh{Family: family, IP: gateway(p).AsSlice(), HardwareAddr: at})
		want[p] = gateway(p)
	}
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		has, err := device.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			errs = append(errs, fmt.Errorf("list neighbours of %s: %w", Device, err))
		}
		for _, n := range has {
			if n.State&netlink.NUD_PERMANENT == 0 || keep[n.IP.String()+" "+n.HardwareAddr.String()] {
				continue
			}
			if family == unix.AF_BRIDGE {
				n.Family, n.Flags = unix.AF_BRIDGE, netlink.NTF_SELF
			}
			if err := netlink.NeighDel(&n); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove neighbour %s: %w", n.IP, err))
			}
		}
	}
	return append(errs, apply(want, index)...)
}

// device creates or corrects the device.
func (t tunnel) device() (netlink.Link, error) {
	mtu, err := TunnelMTU(t.address)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = Device, mtu, hardware(t.address)
	want := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: network, Port: port, SrcAddr: t.address.AsSlice(), Learning: false}
	link, err := netlink.LinkByName(Device)
	if has, ok := link.(*netlink.Vxlan); err == nil &&
		(!ok || has.VxlanId != network || has.Port != port || !has.SrcAddr.Equal(want.SrcAddr) ||
			!bytes.Equal(has.HardwareAddr, attrs.HardwareAddr)) {
		if err := netlink.LinkDel(link); err != nil {
			return nil, fmt.Errorf("remove device %s: %w", Device, err)
		}
		err = netlink.LinkNotFoundError{}
		link = nil
	}
	if link == nil || err != nil {
		if err := netlink.LinkAdd(want); err != nil {
			return nil, fmt.Errorf("make device %s: %w", Device, err)
		}
		if link, err = netlink.LinkByName(Device); err != nil {
			return nil, fmt.Errorf("find device %s: %w", Device, err)
		}
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set MTU of %s: %w", Device, err)
		}
	}
	var own []netip.Addr
	for _, p := range t.ranges {
		own = append(own, gateway(p))
	}
	return link, device.Up(link, own)
}

// RemoveTunnel removes the device, and with it the routes through it.
func RemoveTunnel() error { return device.Remove(Device) }
