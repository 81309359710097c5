// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

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
	"github.com/mortise-dev/mortise/internal/agent/announce"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/dns"
	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
	"github.com/mortise-dev/mortise/internal/agent/gateway"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/routes"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
)

// networkRetry is how long a failed part waits before it tries again.
const networkRetry = 30 * time.Second

// checkNetwork refuses invalid settings.
func (p *Plan) checkNetwork() error {
	err := errors.Join(netfilter.CheckMode(p.Options.Network.ProxyMode), proxy.CheckNodePortAddresses(p.Options.Network.NodePortAddresses))
	if err != nil {
		return err
	}
	return p.checkProxying()
}

// network is the node's configuration of its network.
type network struct {
	podMTU      int             // of pods' packets; 0: the machine's default
	masqueraded bool            // the node masquerades what pods send out of the cluster
	clusterDNS  func() []string // the DNS addresses for pods; nil, or none: the machine's
}

// networking is the network of a real node during its start.
type networking struct {
	plan    *Plan
	node    *node.Connection
	parts   *lifecycle.Group
	metrics *proxy.Metrics // nil: the API server is elsewhere, and cannot show them
	client  kubernetes.Interface
	caches  informers.SharedInformerFactory // of the proxy, the DNS and the routes
	log     *slog.Logger
}

// runNetwork starts the service proxy, the DNS and the routes on the node. Proxy and DNS share their
// caches. runNetwork logs what the machine does not support, which `mortise extensions` also shows; the node goes on without it.
func (p *Plan) runNetwork(ctx context.Context, c *node.Connection, parts *lifecycle.Group) (n network, err error) {
	settings := &p.Options.Network
	client, err := kubernetes.NewForConfig(c.Network)
	if err != nil {
		return n, fmt.Errorf("make client of the node's network: %w", err)
	}
	w := &networking{
		plan: p, node: c, parts: parts, metrics: p.metrics, client: client, caches: informers.NewSharedInformerFactory(client, 0),
		log: p.Logger.With("part", "network"),
	}
	other := p.ForeignNetwork()
	rules := ruler{mode: settings.ProxyMode, log: w.log, shown: &atomic.Value{}}
	if p.proxying != nil {
		rules.mode = string(p.proxying.Mode)
	}
	if !settings.NoProxy || !other {
		_ = rules.choose(ctx) // the parts that need it log the failure
	}
	if !settings.NoProxy {
		if err := w.runProxy(ctx, rules); err != nil {
			return n, err
		}
	}
	if !settings.NoDNS {
		if n.clusterDNS, err = w.runDNS(ctx); err != nil {
			return n, err
		}
	}
	if !other {
		n.masqueraded = w.runGateway(ctx, rules)
	}
	if !settings.NoRoutes && !other {
		n.podMTU = w.runRoutes(ctx)
	}
	if err := w.runAnnouncements(ctx); err != nil {
		return n, err
	}
	parts.Run(ctx, "network's caches", func(ctx context.Context) error {
		w.caches.Start(ctx.Done())
		<-ctx.Done()
		w.caches.Shutdown()
		return nil
	})
	return n, nil
}

// runDNS serves the names of Services unless another DNS does. It returns a function for the addresses at which pods ask.
func (w *networking) runDNS(ctx context.Context) (clusterDNS func() []string, err error) {
	if err := dns.Prepare(w.caches); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(w.node.DNS)
	if err != nil {
		return nil, fmt.Errorf("make client of the cluster DNS: %w", err)
	}
	if !w.node.Joined { // a joined node has no right to do this
		if _, _, err := dnsservice.Ensure(ctx, client, w.plan.ServiceCIDRs); err != nil {
			w.log.Error("Could not create the Service of the cluster DNS", "error", err)
		}
	}
	service, err := dnsservice.FollowService(ctx, client, w.caches, w.log)
	if err != nil {
		return nil, err
	}
	w.parts.Run(ctx, "cluster DNS", func(ctx context.Context) error {
		return service.Run(ctx, w.answerDNS, func() {
			w.log.Warn("The Service kube-system/kube-dns does not exist: pods use the DNS servers of the machine until then; " +
				"`mortise token create` creates it")
		})
	})
	return service.Addresses, nil
}

// answerDNS serves the addresses of the cluster's DNS, until ctx ends.
func (w *networking) answerDNS(ctx context.Context, addresses []netip.Addr) error {
	return again(ctx, w.log, "Could not serve the cluster DNS on this node, retrying", func() error {
		return dns.Run(ctx, dns.Options{Informers: w.caches, Addresses: addresses, Logger: w.log})
	})
}

// runAnnouncements answers on the node's network for the addresses of load balancers that the controller assigns to this node.
func (w *networking) runAnnouncements(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(w.node.Config)
	if err != nil {
		return fmt.Errorf("make client of the node's announcements: %w", err)
	}
	announce.Prepare(w.caches)
	w.parts.Run(ctx, "addresses of load balancers", func(ctx context.Context) error {
		return again(ctx, w.log, "Could not announce the addresses of load balancers, retrying", func() error {
			return announce.Run(ctx, announce.Options{NodeName: w.node.Name, Informers: w.caches, Client: client, Logger: w.log})
		})
	})
	return nil
}

// runRoutes maintains routes to the pods of other nodes. It returns the MTU for pods; 0: the machine's default.
func (w *networking) runRoutes(ctx context.Context) (mtu int) {
	routes.Prepare(w.caches)
	vxlan := w.plan.Options.Network.VXLAN
	if vxlan {
		at, err := netip.ParseAddr(w.node.Addresses.Texts()[0])
		if err == nil {
			mtu, err = routes.TunnelMTU(at.Unmap())
		}
		if err != nil {
			w.log.Error("Could not limit the MTU of pods, so that their packets may be too large for the tunnel to other nodes", "error", err)
		}
	}
	w.parts.Run(ctx, "routes to other nodes", func(ctx context.Context) error {
		return routes.Run(ctx, routes.Options{NodeName: w.node.Name, Informers: w.caches, VXLAN: vxlan, Logger: w.log})
	})
	return mtu
}

// ruler writes a node's packet rules.
type ruler struct {
	mode    string
	log     *slog.Logger
	backend netfilter.Backend
	without error // why there is no backend

	shown *atomic.Value // the backend's name, for others, once there is one
}

func (r *ruler) choose(ctx context.Context) error {
	if r.backend, r.without = netfilter.Choose(ctx, r.mode, r.log); r.without == nil {
		r.shown.Store(string(r.backend))
	}
	return r.without
}

// ref returns the backend in use, or the one to be used, as an extension.
func (r *ruler) ref() extension.Ref {
	return extension.Ref{Point: extension.NetworkPlugin, Name: cmp.Or(string(r.backend), r.mode, string(netfilter.NFTables))}
}

// runProxy runs the service proxy. It retries while no backend is available.
func (w *networking) runProxy(ctx context.Context, rules ruler) error {
	settings, ledger := &w.plan.Options.Network, w.plan.Ledger
	options := proxy.Options{
		NodeName: w.node.Name, Client: w.client, Informers: w.caches, PodCIDRs: w.plan.PodCIDRs, Metrics: w.metrics, Logger: w.log,
		NodePortAddresses: settings.NodePortAddresses, MasqueradeAll: settings.MasqueradeAll,
	}
	if w.plan.proxying != nil {
		if err := w.configureProxy(ctx, rules, &options); err != nil {
			return err
		}
	}
	if err := proxy.Prepare(options.Informers); err != nil {
		return err
	}
	const by = "the service proxy"
	ledger.Register(rules.ref(), by)
	w.parts.Run(ctx, "service proxy", func(ctx context.Context) error {
		booked := func(open func(context.Context) error) error {
			return ledger.Call(ctx, rules.ref(), extension.Policy{}, open)
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
			rules.log.Warn("Could not turn on bridge-nf-call, so that pods that call pods of this node by Services are masqueraded", "error", err)
		} else {
			options.Bridged = true
		}
		return again(ctx, rules.log, "Could not run the service proxy on this node, retrying", func() error {
			if before := rules.ref(); rules.without != nil {
				if err := booked(rules.choose); err != nil {
					return err
				}
				if chosen := rules.ref(); chosen != before {
					ledger.Unregister(before)
					ledger.Register(chosen, by)
				}
			}
			options.Backend = rules.backend
			return proxy.Run(ctx, options)
		})
	})
	return nil
}

// runGateway lets pods reach addresses outside their bridge, and masquerades what they send out of the cluster. If that is not possible, it
// returns false: the CNI plug-in masquerades all that leaves the bridge.
func (w *networking) runGateway(ctx context.Context, rules ruler) (masqueraded bool) {
	log, pods := rules.log, w.plan.PodCIDRs
	if err := gateway.Forward(pods); err != nil {
		log.Error("Could not turn on IP forwarding, so that pods of this node are out of reach", "error", err)
	}
	err := rules.without
	if err == nil {
		err = gateway.Write(ctx, rules.backend, pods)
	}
	if err != nil {
		log.Warn("Could not write the pod gateway's rules, so that pods of other nodes see this node as client, not its pods", "error", err)
		return false
	}
	w.parts.Run(ctx, "pods' gateway", func(ctx context.Context) error {
		return gateway.Run(ctx, gateway.Options{Pods: pods, Backend: rules.backend, Logger: log})
	})
	return true
}

// again runs a part until ctx ends, and restarts it after a pause if it fails. It logs the first failure of a series, and fewer and fewer
// of the others; a part that ran for longer than the pause begins a new series.
func again(ctx context.Context, log *slog.Logger, message string, run func() error) error {
	var failures backoff.Failures
	for {
		begin := time.Now()
		err := run()
		now := time.Now()
		if now.Sub(begin) > networkRetry {
			failures.Clear()
		}
		if err != nil && ctx.Err() == nil {
			failures.Log(now, log.Error, message, "error", err, "again", networkRetry)
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
