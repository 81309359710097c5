// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress/kernel"
)

// Addresses are the addresses at which clients reach a node. They may change at any time (package nodeaddress).
type Addresses interface {
	// Texts returns the current addresses, the primary one first.
	Texts() []string
	// Tell registers f to be called after each change.
	Tell(f func())
}

// findAddresses determines the addresses of the node, unless the options contain them.
func (n *node) findAddresses(ctx context.Context) (err error) {
	if n.Addresses != nil {
		return nil
	}
	if n.finds, err = nodeaddress.Find(ctx, kernel.Linux{}, nodeaddress.Options{Logger: n.Logger}); err != nil {
		return err
	}
	n.Addresses = n.finds
	return nil
}

// followAddresses follows the addresses of the machine if the node found them itself.
func (n *node) followAddresses(ctx context.Context) error {
	if n.finds == nil {
		return nil
	}
	return n.finds.Run(ctx)
}

// ips returns the current addresses of the node.
func (n *node) ips() []string { return n.Addresses.Texts() }

// addressesChanged writes the Node object and the status of each pod again.
func (n *node) addressesChanged() {
	n.nodeStatus.Resync()
	n.workers.WakeAll()
}
