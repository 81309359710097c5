// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podaccess

import (
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// podLinks are the types of network devices by which CNI plug-ins reach pods, of this node and of others.
var podLinks = []string{"bridge", "veth", "dummy", "ipvlan", "macvlan", "vxlan", "geneve", "netkit"}

// byPodLink reports whether the kernel reaches an address by a device such as pods are behind. A device with a route to a gateway is
// not one, of whatever type: a machine that is a container itself reaches its network by a veth device.
func byPodLink(to netip.Addr) bool {
	ways, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(ways) == 0 {
		return false
	}
	link, err := netlink.LinkByIndex(ways[0].LinkIndex)
	if err != nil || !slices.Contains(podLinks, link.Type()) {
		return false
	}
	family := netlink.FAMILY_V4
	if to.Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := device.Whole(func() ([]netlink.Route, error) { return netlink.RouteList(link, family) })
	return err == nil && !slices.ContainsFunc(routes, isDefault)
}

// isDefault reports whether a route leads to everything.
func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Dst.IP.IsUnspecified()
}
