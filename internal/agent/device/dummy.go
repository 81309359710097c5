// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddDummy makes a dummy device with these addresses, each as a network of its own, and no others. It reuses an existing device of that
// name. A kernel without dummy devices gets a bridge without ports, which behaves alike.
func AddDummy(name string, addresses []netip.Addr) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err = netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}); errors.Is(err, unix.EOPNOTSUPP) {
			err = netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		}
		if err == nil || errors.Is(err, unix.EEXIST) {
			link, err = netlink.LinkByName(name)
		}
	}
	if err != nil {
		return fmt.Errorf("make network device %s: %w", name, err)
	}
	return Up(link, addresses)
}

// FreeBind is a Control function of net.ListenConfig. It lets a socket bind to an address that is not ready yet, such as an IPv6 address on
// a new device.
func FreeBind(network, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		if strings.HasSuffix(network, "6") {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}
	})
	return errors.Join(failed, err)
}
