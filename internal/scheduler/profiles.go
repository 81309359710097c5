// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/extender"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
	"github.com/mortise-dev/mortise/internal/scheduler/recorder"
)

// Check reports what would prevent a scheduler with these plug-ins from using a configuration. It builds the profiles that use only
// plug-ins in own, the built-in ones. For other profiles, it checks that their plug-ins exist: these do not run before the scheduler does.
func Check(ctx context.Context, c *config.Configuration, plugins, own profile.Registry) error {
	has := func(r profile.Registry, name string) bool {
		return slices.ContainsFunc(r, func(x profile.Registration) bool { return x.Name == name })
	}
	var errs []error
	for i, s := range settings(c, nil) {
		foreign := false
		for _, name := range config.Enabled(&c.Profiles[i]) {
			if !has(plugins, name) {
				errs = append(errs, fmt.Errorf("creating profile for scheduler name %s: plugin %q does not exist", s.Name, name)) // upstream's words
			}
			foreign = foreign || !has(own, name)
		}
		if foreign {
			continue
		}
		p, err := profile.Configure(ctx, s, own, profile.Clients{Informers: informers.NewSharedInformerFactory(nil, 0)}) // never started
		if err == nil {
			err = p.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("creating profile for scheduler name %s: %w", s.Name, err)) // upstream's words
		}
	}
	if _, err := extender.All(ctx, c.Extenders, extender.Options{}); err != nil {
		errs = append(errs, fmt.Errorf("couldn't build extenders: %w", err)) // upstream's words
	}
	return errors.Join(errs...)
}

// settings returns the profiles' settings. NodeResourcesFit ignores the resources that only extenders manage.
func settings(c *config.Configuration, ignored []string) (out []profile.Settings) {
	for i := range c.Profiles {
		p := &c.Profiles[i]
		s := profile.Settings{Name: config.Name(p), Percentage: p.PercentageOfNodesToScore, Plugins: p.Plugins, Args: config.Args(p)}
		if fit, ok := s.Args[noderesources.FitName].(*configv1.NodeResourcesFitArgs); ok && len(ignored) > 0 {
			fit = fit.DeepCopy()
			fit.IgnoredResources = ignored
			s.Args[noderesources.FitName] = fit
		}
		out = append(out, s)
	}
	return out
}

// ignored returns the resources that only extenders manage.
func ignored(extenders []configv1.Extender) (out []string) {
	for _, e := range extenders {
		for _, r := range e.ManagedResources {
			if r.IgnoredByScheduler {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

// makeProfiles creates the profiles of the configuration, or the default one.
func (s *scheduler) makeProfiles(ctx context.Context, clients profile.Clients) error {
	o, c := s.options, s.options.Configuration
	clients.Waiting = profile.NewWaiting()
	if c == nil {
		clients.Recorder = s.reporter(o.Name)
		p, err := profile.New(ctx, o.Name, o.Plugins, clients)
		if err != nil {
			return err
		}
		s.profiles[o.Name] = p
		return nil
	}
	clients.Parallelism = int(*c.Parallelism)
	var err error
	if clients.Extenders, err = extender.All(ctx, c.Extenders, extender.Options{
		Ledger: o.Ledger, Where: o.Configured, Failures: o.ExtenderFailures, Pause: o.ExtenderPause,
	}); err != nil {
		return fmt.Errorf("couldn't build extenders: %w", err) // upstream's words
	}
	var first *profile.Profile
	var firstArgs runtime.Object
	for _, x := range settings(c, ignored(c.Extenders)) {
		clients.Recorder = s.reporter(x.Name)
		p, err := profile.Configure(ctx, x, o.Plugins, clients)
		if err != nil {
			return fmt.Errorf("initializing profiles: creating profile for scheduler name %s: %w", x.Name, err) // upstream's words
		}
		s.profiles[x.Name] = p
		sorter := p.QueueSort().Name()
		if first == nil {
			first, firstArgs = p, x.Args[sorter]
		}
		switch {
		case sorter != first.QueueSort().Name():
			return fmt.Errorf("initializing profiles: different queue sort plugins for profile %q: %q, first: %q", x.Name, sorter,
				first.QueueSort().Name()) // upstream's words
		case !equality.Semantic.DeepEqual(firstArgs, x.Args[sorter]):
			return fmt.Errorf("initializing profiles: different queue sort plugin args for profile %q", x.Name) // upstream's words
		}
	}
	return nil
}

// reporter returns the event recorder of a profile.
func (s *scheduler) reporter(name string) *recorder.Reporter {
	s.reporters[name] = s.recorder.For(name)
	return s.reporters[name]
}

func (s *scheduler) closeProfiles() {
	for _, p := range s.profiles {
		if err := p.Close(); err != nil {
			s.logger.Warn("Could not close scheduler plug-ins", "profile", p.Name(), "error", err)
		}
	}
}

// queueOptions returns the queue's options.
func (o *Options) queueOptions() queue.Options {
	q := queue.Options{Clock: o.Clock, Logger: o.Logger}
	if o.Metrics != nil {
		q.Incoming, q.Hinted = o.Metrics.Incoming, o.Metrics.Hinted
	}
	if c := o.Configuration; c != nil {
		q.InitialBackoff = time.Duration(*c.PodInitialBackoffSeconds) * time.Second
		q.MaxBackoff = time.Duration(*c.PodMaxBackoffSeconds) * time.Second
	}
	return q
}
