// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/dns"
	"github.com/mortise-dev/mortise/internal/agent/gateway"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/routes"
)

// networkRetry is how long a part that cannot work waits before it tries again.
const networkRetry = 30 * time.Second

// checkNetwork refuses settings that nothing could be made of.
func checkNetwork(_ context.Context, _ *parts, o *settled) error {
	settings := o.apiserver.Network
	if err := errors.Join(netfilter.CheckMode(settings.ProxyMode), proxy.CheckNodePortAddresses(settings.NodePortAddresses)); err != nil {
		return err
	}
	return checkProxying(o)
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
	other := cni.Other(cni.DefaultDir) != "" // another network has ways of its own
	rules := ruler{mode: settings.ProxyMode, log: log, shown: &atomic.Value{}}
	if o.proxying != nil {
		rules.mode = string(o.proxying.Mode)
	}
	if !settings.NoProxy || !other {
		// What does not work is logged by those who need it.
		_ = rules.choose(ctx)
	}
	if !settings.NoProxy {
		options := proxy.Options{
			NodeName: p.place.name, Client: client, Informers: shared, PodCIDRs: o.podCIDRs, Metrics: p.proxyMetrics, Logger: log,
			NodePortAddresses: settings.NodePortAddresses, MasqueradeAll: settings.MasqueradeAll,
		}
		if o.proxying != nil {
			if err := p.configureProxy(ctx, o, rules, &options); err != nil {
				return err
			}
		}
		if err := p.serve(rules, options); err != nil {
			return err
		}
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
	if !other {
		p.beGateway(ctx, o, rules)
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

// ruler is what a node's rules are written by.
type ruler struct {
	mode    string
	log     *slog.Logger
	backend netfilter.Backend
	without error // why there is none

	shown *atomic.Value // the backend's name, once there is one, for others
}

func (r *ruler) choose(ctx context.Context) error {
	if r.backend, r.without = netfilter.Choose(ctx, r.mode, r.log); r.without == nil {
		r.shown.Store(string(r.backend))
	}
	return r.without
}

// ref is the backend as an extension: that which is, or would be.
func (r *ruler) ref() extension.Ref {
	return extension.Ref{Point: extension.NetworkPlugin, Name: cmp.Or(string(r.backend), r.mode, string(netfilter.NFTables))}
}

// serve makes Services work. A backend that is not there may be there later.
func (p *parts) serve(rules ruler, options proxy.Options) error {
	if err := proxy.Prepare(options.Informers); err != nil {
		return err
	}
	const by = "the service proxy"
	p.ledger.Register(rules.ref(), by)
	p.client("service proxy", func(ctx context.Context) error {
		booked := func(open func(context.Context) error) error {
			return p.ledger.Call(ctx, rules.ref(), extension.Policy{}, open)
		}
		options.Open = func(f knftables.Family, table string) (nft knftables.Interface, err error) {
			err = booked(func(context.Context) (err error) { nft, err = proxy.Open(f, table); return err })
			return nft, err
		}
		options.OpenXTables = func(v6 bool) (x proxy.XTables, err error) {
			err = booked(func(context.Context) (err error) { x, err = netfilter.OpenXTables(v6); return err })
			return x, err
		}
		if err := proxy.Bridge(ctx); err != nil {
			rules.log.Warn("pods of this node are masqueraded to each other when they call Services", "error", err)
		} else {
			options.Bridged = true
		}
		return again(ctx, func() error {
			if before := rules.ref(); rules.without != nil {
				if err := booked(rules.choose); err != nil {
					return err
				}
				if now := rules.ref(); now != before {
					p.ledger.Unregister(before)
					p.ledger.Register(now, by)
				}
			}
			options.Backend = rules.backend
			return proxy.Run(ctx, options)
		}, func(err error) {
			rules.log.Error("Services do not work on this node", "error", err, "again", networkRetry)
		})
	})
	return nil
}

// beGateway lets pods reach what is not on their bridge. Where that cannot be arranged, the CNI plug-in masquerades all that leaves it.
func (p *parts) beGateway(ctx context.Context, o *settled, rules ruler) {
	log := rules.log
	if err := gateway.Forward(o.podCIDRs); err != nil {
		log.Error("this node sends nothing on to its pods", "error", err)
	}
	err := rules.without
	if err == nil {
		err = gateway.Write(ctx, rules.backend, o.podCIDRs)
	}
	if err != nil {
		log.Warn("pods of other nodes see this node where its pods call", "error", err)
		return
	}
	p.masqueraded = true
	p.client("pods' gateway", func(ctx context.Context) error {
		return gateway.Run(ctx, gateway.Options{Pods: o.podCIDRs, Backend: rules.backend, Logger: log})
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
