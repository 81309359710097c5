// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
)

// Addresses are where others reach a node. They may change at any time (package nodeaddress).
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
	// Tell has f called after each change.
	Tell(f func())
}

// findAddresses finds out where others reach the node, unless the options say it.
func (n *node) findAddresses(ctx context.Context) (err error) {
	if n.Addresses != nil {
		return nil
	}
	if n.finds, err = nodeaddress.Find(ctx, nodeaddress.Options{Logger: n.Logger}); err != nil {
		return err
	}
	n.Addresses = n.finds
	return nil
}

// followAddresses follows the addresses of the machine, where they are the node's.
func (n *node) followAddresses(ctx context.Context) error {
	if n.finds == nil {
		return nil
	}
	return n.finds.Run(ctx)
}

// ips are where others reach the node now.
func (n *node) ips() []string { return n.Addresses.Texts() }

// addressesChanged has the Node written anew, and the status of each pod.
func (n *node) addressesChanged() {
	n.nodeStatus.Resync()
	n.workers.WakeAll()
}
