// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/election"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/why"
)

// checkScheduler reads what the scheduler is configured by, and sees that it can be done.
func checkScheduler(ctx context.Context, p *parts, o *settled) error {
	own, file := builtin.SchedulerPlugins(), o.apiserver.Scheduler.ConfigFile
	p.schedulerPlugins = slices.Clone(own)
	for _, name := range slices.Sorted(maps.Keys(o.extensions.SchedulerPlugins)) {
		if slices.ContainsFunc(own, func(r profile.Registration) bool { return r.Name == name }) {
			return fmt.Errorf("a plugin named %v already exists", name) // upstream's words
		}
		p.schedulerPlugins = append(p.schedulerPlugins, profile.Registration{Name: name, New: o.extensions.SchedulerPlugins[name]})
	}
	p.scheduling = config.Default()
	if file != "" {
		if o.bare {
			return errors.New("--scheduler-config: there is no scheduler where there are no controllers")
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read scheduler configuration: %w", err)
		}
		if p.scheduling, err = config.Parse(data); err != nil {
			return fmt.Errorf("read scheduler configuration %s: %w", file, err)
		}
	}
	warnings := p.scheduling.Without(func(name string) bool {
		return slices.ContainsFunc(p.schedulerPlugins, func(r profile.Registration) bool { return r.Name == name })
	})
	for _, w := range append(warnings, p.scheduling.Unheeded()...) {
		o.log.Warn("scheduler configuration", "file", file, "warning", w)
	}
	if err := scheduler.Check(ctx, p.scheduling, p.schedulerPlugins, own); err != nil {
		return fmt.Errorf("check scheduler configuration %s: %w", file, err)
	}
	return nil
}

// explain is what is kept of writes and of the scheduler's decisions.
func (p *parts) explain(o *settled) apiserver.Explain {
	e := apiserver.Explain{On: o.apiserver.Explain.Enabled, Bytes: int64(o.apiserver.Explain.Memory) << 20}
	if e.On && !o.bare {
		p.decisions = why.New(why.Options{})
		e.Scheduling = p.decisions
	}
	return e
}

func runScheduler(_ context.Context, p *parts, o *settled) error {
	if o.bare {
		return nil
	}
	connection := p.as(p.component(user.KubeScheduler))
	p.client("scheduler", p.schedules(o, connection, func(ctx context.Context) error {
		return scheduler.Run(ctx, scheduler.Options{
			Config: connection, Plugins: p.schedulerPlugins, Foreign: len(o.extensions.SchedulerPlugins) > 0, Configuration: p.scheduling,
			Ledger: p.ledger, Configured: o.apiserver.Scheduler.ConfigFile, Logger: o.log.With("part", "scheduler"),
			Why: p.decisions, Metrics: p.schedulerMetrics, ExtenderFailures: o.apiserver.Scheduler.ExtenderFailures, ExtenderPause: o.apiserver.Scheduler.ExtenderPause,
		})
	}))
	return nil
}

// schedules runs the scheduler while it is elected, where it is to be: by what its configuration says, and where that says
// nothing, as the controllers are.
func (p *parts) schedules(o *settled, connection *rest.Config, run func(context.Context) error) func(context.Context) error {
	const component = "kube-scheduler"
	w, flags := p.scheduling.Written.LeaderElection, o.apiserver.Controllers.Election
	if elects := w.LeaderElect; elects != nil && !*elects || elects == nil && !o.elects() {
		return run
	}
	options := election.Options{
		Component: component, Namespace: cmp.Or(w.ResourceNamespace, flags.Namespace, "kube-system"), Name: cmp.Or(w.ResourceName, component),
	}
	options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = flags.Durations()
	options.LeaseDuration = cmp.Or(w.LeaseDuration.Duration, options.LeaseDuration)
	options.RenewDeadline = cmp.Or(w.RenewDeadline.Duration, options.RenewDeadline)
	options.RetryPeriod = cmp.Or(w.RetryPeriod.Duration, options.RetryPeriod)
	return p.campaign(options, o, connection, func() {}, run)
}
