// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/conntrack"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/proxyconfig"
)

// checkProxying reads the configuration of the service proxy, before anything starts.
func (p *Plan) checkProxying() error {
	settings := &p.Options.Network
	if settings.ProxyConfigFile == "" {
		return nil
	}
	c, err := proxyconfig.Load(settings.ProxyConfigFile, proxyconfig.Flags{
		Mode: settings.ProxyMode, NodePortAddresses: settings.NodePortAddresses, MasqueradeAll: settings.GivenMasqueradeAll(),
	})
	if err != nil {
		return err
	}
	warn := func(text string) {
		p.Logger.Warn("Warning in the KubeProxyConfiguration", "file", settings.ProxyConfigFile, "warning", text)
	}
	if settings.NoProxy {
		warn("--no-service-proxy leaves it without effect")
	}
	for _, text := range c.Warnings() {
		warn(text)
	}
	if ranges := c.PodCIDRs(); len(ranges) > 0 && !slices.Equal(ranges, p.PodCIDRs) {
		warn(fmt.Sprintf("Services take %v for the ranges of pods, by clusterCIDR; --pod-cidr has %v", ranges, p.PodCIDRs))
	}
	p.proxying = c
	return nil
}

// configureProxy configures the proxy by its file, and serves its pages.
func (w *networking) configureProxy(ctx context.Context, rules ruler, options *proxy.Options) (err error) {
	c := w.plan.proxying
	if options.Metrics == nil { // the API server is elsewhere, and cannot show them
		if options.Metrics, err = proxy.NewMetrics(prometheus.NewRegistry()); err != nil {
			return err
		}
	}
	options.Health = proxy.NewHealth(2*c.SyncPeriod(), clock.RealClock{}, options.Metrics)
	options.NodePortAddresses, options.MasqueradeAll, options.MasqueradeMark = c.NodePortPrefixes(), c.MasqueradeAll(), c.MasqueradeMark()
	options.SyncPeriod, options.MinSyncPeriod = c.SyncPeriod(), c.MinSyncPeriod()
	options.NodePods, options.Address = c.NodePods(), c.Address()
	options.PodInterface, options.PodInterfaceBegins = c.PodInterface()
	if ranges := c.PodCIDRs(); len(ranges) > 0 {
		options.PodCIDRs = ranges
	}
	if err := conntrack.Apply(ctx, c.Tracking(conntrack.Processors())); err != nil {
		rules.log.Error("Could not apply the conntrack settings of the KubeProxyConfiguration, keeping the kernel's", "error", err)
	}
	pages := proxy.Pages{
		Mode: func() string {
			chosen, _ := rules.shown.Load().(string)
			return cmp.Or(chosen, rules.mode, string(netfilter.NFTables))
		},
		Metrics: options.Metrics, Configuration: c.KubeProxyConfiguration, Profiling: c.EnableProfiling,
	}
	health := page{
		name: "health of the service proxy", address: c.HealthzAddress(), handler: options.Health.Handler(), must: c.BindAddressHardFail,
	}
	if err := w.serve(ctx, health); err != nil {
		return err
	}
	return w.serve(ctx, page{
		name: "metrics of the service proxy", address: c.MetricsAddress(), handler: pages.Handler(), must: c.BindAddressHardFail,
	})
}

// page is a handler and its address.
type page struct {
	name, address string
	handler       http.Handler
	must          bool // the node does not start without its port
}

// serve serves a page. If its port is in use and the node can do without the page, it retries.
func (w *networking) serve(ctx context.Context, p page) error {
	listen := func(ctx context.Context) (net.Listener, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", p.address)
		if err != nil {
			return nil, fmt.Errorf("serve the %s: %w", p.name, err)
		}
		return l, nil
	}
	answer := func(ctx context.Context, l net.Listener) error {
		if err := agent.AnswerPlain(ctx, l, p.handler); err != nil {
			return fmt.Errorf("serve the %s: %w", p.name, err)
		}
		return nil
	}
	if p.must {
		l, err := listen(ctx)
		if err != nil {
			return err
		}
		w.parts.Run(ctx, p.name, func(ctx context.Context) error { return answer(ctx, l) })
		return nil
	}
	w.parts.Run(ctx, p.name, func(ctx context.Context) error {
		return again(ctx, w.log, "Could not serve a page of the service proxy, retrying", func() error {
			l, err := listen(ctx)
			if err != nil {
				return err
			}
			return answer(ctx, l)
		})
	})
	return nil
}
