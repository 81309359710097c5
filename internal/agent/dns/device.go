// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// deviceName is the name of the network device with the cluster DNS addresses of this node. Nothing is behind it.
const deviceName = "mortise-dns"

// Remove removes the device that a killed process has left on this machine.
func Remove() error { return device.Remove(deviceName) }

// Probe queries the cluster DNS of this machine for a name. It returns the addresses of the device, or none without a device, and the error
// of the first address that does not respond.
func Probe(ctx context.Context) (addresses []netip.Addr, err error) {
	link, err := netlink.LinkByName(deviceName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find network device %s: %w", deviceName, err)
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of network device %s: %w", deviceName, err)
	}
	for _, a := range all {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.IsLinkLocalUnicast() {
			addresses = append(addresses, ip.Unmap())
		}
	}
	client := dns.Client{Timeout: 2 * time.Second}
	question := new(dns.Msg).SetQuestion("kubernetes.default.svc.cluster.local.", dns.TypeA)
	for _, a := range addresses {
		if _, _, err := client.ExchangeContext(ctx, question, net.JoinHostPort(a.String(), "53")); err != nil {
			return addresses, fmt.Errorf("ask %s: %w", a, err)
		}
	}
	return addresses, nil
}
