// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"net/netip"
	"sync"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/election"
	"github.com/mortise-dev/mortise/internal/lifecycle"
)

// configureControllers sets and checks the settings of all controllers, the built-in ones and those of extensions.
func (c *settings) configureControllers() error {
	c.controllers = append(builtin.Controllers(), c.Extensions.Controllers...)
	if err := controllers.Configure(c.controllers, c.APIServer.Controllers.Settings); err != nil {
		return err
	}
	return controllers.Check(c.controllers, &controllers.Cluster{PodCIDRs: c.podCIDRs, ServiceCIDR: c.serviceCIDRs[0]})
}

// layout returns what controllers know about the cluster.
func (c *settings) layout(
	material *serving.Material, advertised netip.AddrPort, tokens controllers.TokenSigner, servers controllers.APIServers,
) controllers.Cluster {
	return controllers.Cluster{
		RootCA: material.CA.CertPEM, Signer: &controllers.Authority{Certificate: material.CA.Certificate, Key: material.CA.Key},
		PodCIDRs: c.podCIDRs, ServiceCIDR: c.serviceCIDRs[0],
		AdvertiseAddress: advertised.Addr(), AdvertisePort: int(advertised.Port()), Tokens: tokens, Servers: servers,
		Initializers: c.APIServer.Admission.Initializers, ExternalCloud: c.APIServer.Node.CloudProvider == options.ExternalCloud,

		Signers: c.signing.signers(), PodRootCA: c.signing.rootCA,
	}
}

// runControllers runs the selected controllers. The returned channel is closed when their caches are filled, or when another server turns
// out to run them.
func (c *settings) runControllers(
	ctx context.Context, self components, layout controllers.Cluster, o observation, clients *lifecycle.Group,
) (<-chan struct{}, error) {
	selection := c.Controllers
	if c.bare { // each server publishes itself, even without controllers
		selection = []string{kubernetesservice.Name}
	}
	selected, err := controllers.Select(c.controllers, selection)
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	settled, manager := sync.OnceFunc(func() { close(done) }), self.manager()
	run := func(selected []controllers.Controller, ready func()) func(context.Context) error {
		return func(ctx context.Context) error {
			return controllers.Run(ctx, selected, manager, controllers.Options{
				As: self.asController, Logger: c.Logger.With("part", "controllers"), Ready: ready, Cluster: layout, Metrics: o.controllers,
				Retries: o.retries, Foreign: len(c.Extensions.Controllers) > 0,
				Scaling: controllers.Scaling{Log: o.scalings, Usage: o.usage, Scales: apiserver.NewDirect(self.server)},
			})
		}
	}
	own, shared := divide(selected)
	if !c.elects() || len(shared) == 0 {
		clients.Run(ctx, "controllers", run(selected, settled))
		return done, nil
	}
	const component = "kube-controller-manager"
	e := c.APIServer.Controllers.Election
	settings := election.Options{Component: component, Namespace: cmp.Or(e.Namespace, "kube-system"), Name: cmp.Or(e.Name, component)}
	settings.LeaseDuration, settings.RenewDeadline, settings.RetryPeriod = e.Durations()
	clients.Run(ctx, "controllers", run(own, nil))
	candidate := candidate{config: manager, metrics: o.controllers, log: c.Logger, seen: settled}
	clients.Run(ctx, "controllers", candidate.elected(settings, run(shared, settled)))
	return done, nil
}
