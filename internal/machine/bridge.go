// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// bridge is the bridge of the pods' network on this machine, named in the node's CNI configuration.
const bridge = "mortise0"

// removeIdleBridge removes a bridge without pods. The CNI plug-in creates it again with the next pod; but it refuses an existing one with
// another address, as after a change of the pod network.
func removeIdleBridge() error {
	link, err := netlink.LinkByName(bridge)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for bridge %s: %w", bridge, err)
	}
	all, err := device.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list network links: %w", err)
	}
	for _, l := range all {
		if l.Attrs().MasterIndex == link.Attrs().Index {
			return nil
		}
	}
	if err := netlink.LinkDel(link); err != nil && !errors.As(err, &absent) {
		return fmt.Errorf("remove bridge %s: %w", bridge, err)
	}
	return nil
}
