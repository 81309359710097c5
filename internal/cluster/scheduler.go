// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
	"github.com/mortise-dev/mortise/internal/election"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// scheduling is the scheduler's configuration.
type scheduling struct {
	configuration *config.Configuration
	plugins       profile.Registry // the built-in ones, then those of extensions
}

// readScheduling reads the scheduler's configuration, and checks it.
func readScheduling(ctx context.Context, c *settings) (s scheduling, err error) {
	own, file := builtin.SchedulerPlugins(), c.APIServer.Scheduler.ConfigFile
	s.plugins = slices.Clone(own)
	for _, name := range slices.Sorted(maps.Keys(c.Extensions.SchedulerPlugins)) {
		if slices.ContainsFunc(own, func(r profile.Registration) bool { return r.Name == name }) {
			return s, fmt.Errorf("a plugin named %v already exists", name) // upstream's words
		}
		s.plugins = append(s.plugins, profile.Registration{Name: name, New: c.Extensions.SchedulerPlugins[name]})
	}
	s.configuration = config.Default()
	if file != "" {
		if c.bare {
			return s, errors.New("--scheduler-config: there is no scheduler where there are no controllers")
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return s, fmt.Errorf("read scheduler configuration: %w", err)
		}
		if s.configuration, err = config.Parse(data); err != nil {
			return s, fmt.Errorf("read scheduler configuration %s: %w", file, err)
		}
	}
	if c.bare || c.origin != nil { // there is no scheduler, or the first cluster has the same
		return s, nil
	}
	warnings := s.configuration.Without(func(name string) bool {
		return slices.ContainsFunc(s.plugins, func(r profile.Registration) bool { return r.Name == name })
	})
	for _, w := range append(warnings, s.configuration.Unheeded()...) {
		c.Logger.Warn("Warning in the KubeSchedulerConfiguration", "file", file, "warning", w)
	}
	if err := scheduler.Check(ctx, s.configuration, s.plugins, own); err != nil {
		return s, fmt.Errorf("check scheduler configuration %s: %w", file, err)
	}
	return s, nil
}

// explain sets the settings of write traces, and the logs of decisions; nil: there are no logs.
func (c *settings) explain(o *observation) {
	o.explain = apiserver.Explain{On: c.APIServer.Explain.Enabled, Bytes: int64(c.APIServer.Explain.Memory) << 20}
	if !o.explain.On || c.bare {
		return
	}
	o.decisions, o.scalings = decisionlog.New(decisionlog.Options{}), scalinglog.New(scalinglog.Options{})
	o.explain.Scheduling, o.explain.Autoscaling = o.decisions, o.scalings
}

// runScheduler runs the scheduler, under leader election if configured: by its own configuration or, if that has none, as for the
// controllers.
func (c *settings) runScheduler(
	ctx context.Context, self components, s scheduling, o observation, ledger *extension.Ledger, clients *lifecycle.Group,
) {
	if c.bare {
		return
	}
	connection := self.as(self.component(user.KubeScheduler))
	run := func(ctx context.Context) error {
		return scheduler.Run(ctx, scheduler.Options{
			Config: connection, Plugins: s.plugins, Foreign: len(c.Extensions.SchedulerPlugins) > 0, Configuration: s.configuration,
			Ledger: ledger, Configured: c.APIServer.Scheduler.ConfigFile, Logger: c.Logger.With("part", "scheduler"),
			Decisions: o.decisions, Metrics: o.scheduler,
			ExtenderFailures: c.APIServer.Scheduler.ExtenderFailures, ExtenderPause: c.APIServer.Scheduler.ExtenderPause,
		})
	}
	if options, elects := c.schedulerElection(s.configuration); elects {
		run = candidate{config: connection, metrics: o.controllers, log: c.Logger}.elected(options, run)
	}
	clients.Run(ctx, "scheduler", run)
}

// schedulerElection returns the options of the scheduler's leader election, if there is one.
func (c *settings) schedulerElection(s *config.Configuration) (o election.Options, elects bool) {
	const component = "kube-scheduler"
	w, flags := s.Written.LeaderElection, c.APIServer.Controllers.Election
	if elects := w.LeaderElect; elects != nil && !*elects || elects == nil && !c.elects() {
		return o, false
	}
	o = election.Options{
		Component: component, Namespace: cmp.Or(w.ResourceNamespace, flags.Namespace, "kube-system"), Name: cmp.Or(w.ResourceName, component),
	}
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = flags.Durations()
	o.LeaseDuration = cmp.Or(w.LeaseDuration.Duration, o.LeaseDuration)
	o.RenewDeadline = cmp.Or(w.RenewDeadline.Duration, o.RenewDeadline)
	o.RetryPeriod = cmp.Or(w.RetryPeriod.Duration, o.RetryPeriod)
	return o, true
}
