// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"

	"github.com/mortise-dev/mortise/internal/agent/announce"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/dns"
	"github.com/mortise-dev/mortise/internal/agent/gateway"
	"github.com/mortise-dev/mortise/internal/agent/podaccess"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/routes"
)

// RemoveNetwork removes what a real node's network left on this machine: its CNI configuration, with host-local's files if no pod
// has an address, and the rules of Services and pods, which stay when Mortise stops, so that a restart interrupts no connection; the chains
// of host ports; and the network devices with the addresses of the DNS, of load balancers and of the API server for pods, which stay when
// Mortise is killed.
func RemoveNetwork(ctx context.Context) error {
	return errors.Join(dns.Remove(), podaccess.Remove(), announce.Remove(), routes.RemoveTunnel(), cni.Remove(cni.DefaultDir),
		cni.RemoveLeases(), cni.RemoveHostPorts(ctx), proxy.Remove(ctx), gateway.Remove(ctx))
}
