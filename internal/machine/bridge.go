// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// bridge is the bridge of the pods' network on this machine, named in the node's CNI configuration.
const bridge = "mortise0"

// removeIdleBridge removes a bridge that no pod is plugged into. The CNI plug-in makes it anew with the next pod; but it
// refuses one that is there with another address, as after a change of the pod network. The bridge of a node that runs is the node's.
func removeIdleBridge(ctx context.Context) error {
	if taken := holder(ctx, claimAddress); taken != nil && taken.PID != os.Getpid() {
		return nil
	}
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
