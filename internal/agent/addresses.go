// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// Addresses are where others reach a node. They may change at any time (package nodeaddress).
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
	// Tell has f called after each change.
	Tell(f func())
}

// findAddresses finds out where others reach the node, if nobody has said.
func (n *node) findAddresses(ctx context.Context) (err error) {
	switch {
	case len(n.NodeIPs) > 0:
		n.Addresses = nodeaddress.Fixed(n.NodeIPs...)
	case n.Addresses == nil:
		if n.finds, err = nodeaddress.Find(ctx, nodeaddress.Options{Logger: n.Logger}); err != nil {
			return err
		}
		n.Addresses = n.finds
	}
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
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		w.wake()
	}
}

// inherited are the addresses that a pod has from the node whose network it is in, and what it had of containers when it got them.
type inherited struct {
	of  string
	ips []string
}

// inherit is what a pod in the node's network shows for its own addresses, of those that the node has. As kubelet has it, they do not
// change while nothing happens to the pod, but a second one is added.
func (i *inherited) inherit(state *podstate.Pod, ips []string) []string {
	var all []string
	for _, s := range state.Sandboxes {
		all = append(all, s.ID)
	}
	for _, c := range state.Containers {
		all = append(all, c.ID)
	}
	slices.Sort(all)
	if of := strings.Join(all, " "); i.of != of || len(i.ips) == 0 {
		i.of, i.ips = of, ips
	}
	i.ips = podstatus.AddSecond(i.ips, ips)
	return i.ips
}
