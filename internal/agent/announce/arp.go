// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// tell tells the neighbours on an address's network that it is here, so that they replace what they remember: by a gratuitous ARP request
// (RFC 5227) or an unsolicited neighbour advertisement (RFC 4861). Links without hardware addresses need neither.
func tell(a netip.Addr) error {
	link, err := linkOf(a)
	if err != nil {
		return err
	}
	attrs := link.Attrs()
	if len(attrs.HardwareAddr) != 6 {
		return nil
	}
	if a.Is6() {
		err = advertise(a, attrs)
	} else {
		err = broadcast(a, attrs)
	}
	if err != nil {
		return fmt.Errorf("tell the neighbours on %s that %s is here: %w", attrs.Name, a, err)
	}
	return nil
}

// request returns the gratuitous ARP request of an address.
func request(a netip.Addr, mac []byte) []byte {
	p := make([]byte, 0, 28)
	p = binary.BigEndian.AppendUint16(p, 1) // Ethernet
	p = binary.BigEndian.AppendUint16(p, unix.ETH_P_IP)
	p = append(p, 6, 4)                     // lengths of the addresses
	p = binary.BigEndian.AppendUint16(p, 1) // a request
	ip := a.As4()
	p = append(append(p, mac...), ip[:]...)
	return append(append(p, 0, 0, 0, 0, 0, 0), ip[:]...)
}

func broadcast(a netip.Addr, link *netlink.LinkAttrs) error {
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ARP)) // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	to := &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := unix.Sendto(fd, request(a, link.HardwareAddr), 0, to); err != nil {
		return fmt.Errorf("send ARP request: %w", err)
	}
	return nil
}

// advertisement returns the body of the unsolicited neighbour advertisement of an address.
func advertisement(a netip.Addr, mac []byte) []byte {
	ip := a.As16()
	p := append([]byte{0x20, 0, 0, 0}, ip[:]...) // override
	return append(append(p, 2, 1), mac...)       // the target's hardware address
}

func advertise(a netip.Addr, link *netlink.LinkAttrs) error {
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return fmt.Errorf("open ICMP socket: %w", err)
	}
	defer c.Close()
	message := icmp.Message{
		Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: advertisement(a, link.HardwareAddr)},
	}
	data, err := message.Marshal(nil) // the kernel fills in the checksum
	if err != nil {
		return fmt.Errorf("encode advertisement: %w", err)
	}
	p := c.IPv6PacketConn()
	if err := p.SetMulticastHopLimit(255); err != nil {
		return fmt.Errorf("set hop limit: %w", err)
	}
	ifi := interfaceOf(link)
	if err := p.SetMulticastInterface(ifi); err != nil {
		return fmt.Errorf("set interface: %w", err)
	}
	if _, err := p.WriteTo(data, nil, allNodes(link)); err != nil {
		return fmt.Errorf("send advertisement: %w", err)
	}
	return nil
}

func interfaceOf(link *netlink.LinkAttrs) *net.Interface {
	return &net.Interface{Index: link.Index, Name: link.Name}
}

// allNodes is the multicast address of all nodes on a link.
func allNodes(link *netlink.LinkAttrs) *net.IPAddr {
	return &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: link.Name}
}
