// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/device"
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
	return device.Up(link, addresses)
}

// Remove takes away what a DNS that was killed left on this machine.
func Remove() error { return device.Remove(deviceName) }
