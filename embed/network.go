// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/dns"
	"github.com/mortise-dev/mortise/internal/agent/gateway"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/routes"
)

// networkRetry is how long a part that cannot work waits before it tries again.
const networkRetry = 30 * time.Second

// checkNetwork refuses settings that nothing could be made of.
func checkNetwork(_ context.Context, _ *parts, o *settled) error {
	return proxy.CheckNodePortAddresses(o.apiserver.Network.NodePortAddresses)
}

// runNetwork makes Services and their names work on a real node: simulated pods have no packets. Both work on the same
// caches. What the machine cannot do is logged, and shown by `mortise extensions`; the node does without.
func runNetwork(ctx context.Context, p *parts, o *settled) error {
	settings := o.apiserver.Network
	if o.node == NodeNone && !o.bare && !settings.NoDNS { // nodes are elsewhere: they find the Service, and may not make it
		if _, _, err := dns.Ensure(ctx, p.ownClient(), o.serviceCIDRs); err != nil {
			o.log.Error("nodes that join have no cluster DNS", "error", err)
		}
	}
	if o.node != NodeCRI {
		return nil
	}
	client, err := kubernetes.NewForConfig(p.place.network)
	if err != nil {
		return fmt.Errorf("make client of the node's network: %w", err)
	}
	log := o.log.With("part", "network")
	shared := informers.NewSharedInformerFactory(client, 0)
	if !settings.NoProxy {
		if err := proxy.Prepare(shared); err != nil {
			return err
		}
		ref := extension.Ref{Point: extension.NetworkPlugin, Name: "nftables"}
		p.ledger.Register(ref, "the service proxy")
		options := proxy.Options{
			NodeName: p.place.name, Client: client, Informers: shared, PodCIDRs: o.podCIDRs, Metrics: p.proxyMetrics, Logger: log,
			NodePortAddresses: settings.NodePortAddresses, MasqueradeAll: settings.MasqueradeAll,
			Open: func(f knftables.Family, table string) (nft knftables.Interface, err error) {
				err = p.ledger.Call(ctx, ref, extension.Policy{}, func(context.Context) (err error) {
					nft, err = proxy.Open(f, table)
					return err
				})
				return nft, err
			},
		}
		p.client("service proxy", func(ctx context.Context) error {
			if err := proxy.Bridge(ctx); err != nil {
				log.Warn("pods of this node are masqueraded to each other when they call Services", "error", err)
			} else {
				options.Bridged = true
			}
			return again(ctx, func() error { return proxy.Run(ctx, options) }, func(err error) {
				log.Error("Services do not work on this node", "error", err, "again", networkRetry)
			})
		})
	}
	if !settings.NoDNS {
		if err := dns.Prepare(shared); err != nil {
			return err
		}
		maker, err := kubernetes.NewForConfig(p.place.dns)
		if err != nil {
			return fmt.Errorf("make client of the cluster DNS: %w", err)
		}
		addresses, ours, err := dns.Ensure(ctx, maker, o.serviceCIDRs)
		if err != nil {
			log.Error("pods ask the DNS of the machine alone", "error", err)
		}
		for _, a := range addresses {
			p.clusterDNS = append(p.clusterDNS, a.String())
		}
		if ours {
			p.client("cluster DNS", func(ctx context.Context) error {
				return again(ctx, func() error {
					return dns.Run(ctx, dns.Options{Informers: shared, Addresses: addresses, Logger: log})
				}, func(err error) {
					log.Error("cluster DNS does not answer on this node", "error", err, "again", networkRetry)
				})
			})
		}
	}
	other := cni.Other(cni.DefaultDir) != "" // another network has ways of its own
	if !other {
		p.beGateway(ctx, o, log)
	}
	if !settings.NoRoutes && !other {
		routes.Prepare(shared)
		if settings.VXLAN {
			at, err := netip.ParseAddr(p.place.address)
			if err == nil {
				p.podMTU, err = routes.TunnelMTU(at.Unmap())
			}
			if err != nil {
				log.Error("pods' packets may be too large for the tunnel to other nodes", "error", err)
			}
		}
		p.client("routes to other nodes", func(ctx context.Context) error {
			return routes.Run(ctx, routes.Options{NodeName: p.place.name, Informers: shared, VXLAN: settings.VXLAN, Logger: log})
		})
	}
	p.client("network's caches", func(ctx context.Context) error {
		shared.Start(ctx.Done())
		<-ctx.Done()
		shared.Shutdown()
		return nil
	})
	return nil
}

// beGateway lets pods reach what is not on their bridge. Where that cannot be arranged, the CNI plug-in masquerades all that leaves it.
func (p *parts) beGateway(ctx context.Context, o *settled, log *slog.Logger) {
	if err := gateway.Forward(o.podCIDRs); err != nil {
		log.Error("this node sends nothing on to its pods", "error", err)
	}
	if err := gateway.Write(ctx, o.podCIDRs); err != nil {
		log.Warn("pods of other nodes see this node where its pods call", "error", err)
		return
	}
	p.masqueraded = true
	p.client("pods' gateway", func(ctx context.Context) error {
		return gateway.Run(ctx, gateway.Options{Pods: o.podCIDRs, Logger: log})
	})
}

// again runs a part until ctx ends, after a while once more if it fails.
func again(ctx context.Context, run func() error, failed func(error)) error {
	for {
		if err := run(); err != nil && ctx.Err() == nil {
			failed(err)
		}
		wait := time.NewTimer(networkRetry)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}
