// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"os"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/election"
)

// elected runs a part while this server holds the part's Lease; always, where servers are not to elect one. seen is called
// when another turns out to hold it.
func (p *parts) elected(component, lease string, o *settled, config *rest.Config, seen func(), run func(context.Context) error) func(context.Context) error {
	e := o.apiserver.Controllers.Election
	if !o.elects() {
		return run
	}
	options := election.Options{Component: component, Namespace: cmp.Or(e.Namespace, "kube-system"), Name: cmp.Or(lease, component)}
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = e.Durations()
	return p.campaign(options, o, config, seen, run)
}

// campaign runs a part while this server holds the Lease that the options name. seen is called when another turns out to.
func (p *parts) campaign(options election.Options, o *settled, config *rest.Config, seen func(), run func(context.Context) error) func(context.Context) error {
	component := options.Component
	host, err := os.Hostname()
	if err != nil {
		host = component
	}
	options.Identity, options.Logger = host+"_"+string(uuid.NewUUID()), o.log.With("part", component)
	options.Leader = func(holds bool) {
		p.controllerMetrics.Leading(component, holds)
		if !holds {
			seen()
		}
	}
	return func(ctx context.Context) error { return election.Run(ctx, config, options, run) }
}

// elects tells whether servers elect one that works. Nobody else can have a store in memory, or in a directory that is locked:
// unless told to, a server need not ask.
func (o *settled) elects() bool { return orZero(o.apiserver.Controllers.Election.Elect) }

// divide takes those controllers out that each server runs for itself.
func divide(selected []controllers.Controller) (own, shared []controllers.Controller) {
	for _, c := range selected {
		if c.Name == kubernetesservice.Name {
			own = append(own, c)
		} else {
			shared = append(shared, c)
		}
	}
	return own, shared
}
