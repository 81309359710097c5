// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mortise-dev/mortise/internal/agent/podaccess"
	"github.com/mortise-dev/mortise/internal/node"
)

// podAccess lets pods of this machine reach a server that listens on loopback. The zero value is for other servers, and for machines
// without real containers.
type podAccess struct {
	addresses []netip.Addr
	listeners []net.Listener
	filter    podaccess.Filter
}

// openPodAccess listens on the addresses for pods, with the port of a server on loopback, if real containers run on this machine.
func openPodAccess(ctx context.Context, s *settings, plan *node.Plan, server net.Listener) (podAccess, error) {
	if at := server.Addr().(*net.TCPAddr); plan.Mode != node.CRI || !at.IP.IsLoopback() {
		return podAccess{}, nil
	}
	a := podAccess{
		addresses: podaccess.Addresses(s.podCIDRs),
		filter: podaccess.Filter{
			Pods: s.podCIDRs, Foreign: plan.ForeignNetwork, Logger: s.Logger.With("part", "apiserver"),
		},
	}
	if err := podaccess.Open(a.addresses); err != nil {
		return podAccess{}, fmt.Errorf("add the address at which pods reach the API server: %w", err)
	}
	var err error
	if a.listeners, err = podaccess.Listen(ctx, a.addresses, port(server), a.filter); err != nil {
		return podAccess{}, errors.Join(err, podaccess.Remove())
	}
	return a, nil
}

// texts returns the addresses as text.
func (a *podAccess) texts() (out []string) {
	for _, ip := range a.addresses {
		out = append(out, ip.String())
	}
	return out
}

// admit returns the filter of the node's API; nil: it accepts every connection.
func (a *podAccess) admit() func(net.Listener) net.Listener {
	if len(a.addresses) == 0 {
		return nil
	}
	return a.filter.Only
}

// close closes the listeners and removes the addresses from the machine.
func (a *podAccess) close() error {
	if len(a.addresses) == 0 {
		return nil
	}
	var errs []error
	for _, l := range a.listeners {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, podaccess.Remove())...)
}
