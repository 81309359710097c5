// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"os"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/kubernetesservice"
	"github.com/mortise-dev/mortise/internal/election"
)

// candidate takes part in the election of the server that runs a part.
type candidate struct {
	config  *rest.Config // of the part
	metrics *controllers.Metrics
	log     *slog.Logger
	seen    func() // called when another server holds the Lease; may be nil
}

// elected runs a part while this server holds the Lease that the options name.
func (c candidate) elected(options election.Options, run func(context.Context) error) func(context.Context) error {
	component := options.Component
	host, err := os.Hostname()
	if err != nil {
		host = component
	}
	options.Identity, options.Logger = host+"_"+string(uuid.NewUUID()), c.log.With("part", component)
	options.Leader = func(holds bool) {
		c.metrics.Leading(component, holds)
		if !holds && c.seen != nil {
			c.seen()
		}
	}
	return func(ctx context.Context) error { return election.Run(ctx, c.config, options, run) }
}

// elects reports whether servers elect a leader. No other server can have a store in memory, or in a locked directory: by
// default they elect only on an engine whose data they share.
func (c *settings) elects() bool { return or(c.APIServer.Controllers.Election.Elect, c.engine.Shared) }

// divide separates the controllers that each server runs for itself from the others.
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
