// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
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

// checkProxying reads the configuration of the service proxy, before anything is started.
func checkProxying(o *settled) error {
	settings := o.apiserver.Network
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
		o.log.Warn("kube-proxy configuration", "file", settings.ProxyConfigFile, "warning", text)
	}
	if settings.NoProxy {
		warn("--no-service-proxy leaves it without effect")
	}
	for _, text := range c.Warnings() {
		warn(text)
	}
	if ranges := c.PodCIDRs(); len(ranges) > 0 && !slices.Equal(ranges, o.podCIDRs) {
		warn(fmt.Sprintf("Services take %v for the ranges of pods, by clusterCIDR; --pod-cidr has %v", ranges, o.podCIDRs))
	}
	o.proxying = c
	return nil
}

// configureProxy makes the proxy as its file has it, and serves its pages.
func (p *parts) configureProxy(ctx context.Context, o *settled, rules ruler, options *proxy.Options) (err error) {
	c := o.proxying
	if options.Metrics == nil { // the API server is elsewhere, and does not show them
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
		rules.log.Error("connections are followed by the kernel's own settings, not by those of the kube-proxy configuration", "error", err)
	}
	pages := proxy.Pages{
		Mode: func() string {
			chosen, _ := rules.shown.Load().(string)
			return cmp.Or(chosen, rules.mode, string(netfilter.NFTables))
		},
		Metrics: options.Metrics, Configuration: c.KubeProxyConfiguration, Profiling: c.EnableProfiling,
	}
	if err := p.page(ctx, "health of the service proxy", c.HealthzAddress(), options.Health.Handler(), c.BindAddressHardFail, rules.log); err != nil {
		return err
	}
	return p.page(ctx, "metrics of the service proxy", c.MetricsAddress(), pages.Handler(), c.BindAddressHardFail, rules.log)
}

// page serves a handler at an address. If the port must be there, it is an error when it is not to be had; else it is tried again.
func (p *parts) page(ctx context.Context, name, address string, handler http.Handler, must bool, log *slog.Logger) error {
	listen := func(ctx context.Context) (net.Listener, error) {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("serve the %s: %w", name, err)
		}
		return l, nil
	}
	answer := func(ctx context.Context, l net.Listener) error {
		if err := agent.AnswerPlain(ctx, l, handler); err != nil {
			return fmt.Errorf("serve the %s: %w", name, err)
		}
		return nil
	}
	if must {
		l, err := listen(ctx)
		if err != nil {
			return err
		}
		p.client(name, func(ctx context.Context) error { return answer(ctx, l) })
		return nil
	}
	p.client(name, func(ctx context.Context) error {
		return again(ctx, func() error {
			l, err := listen(ctx)
			if err != nil {
				return err
			}
			return answer(ctx, l)
		}, func(err error) { log.Error("a page is not served", "error", err, "again", networkRetry) })
	})
	return nil
}
