// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/apiserver/reconciler"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
)

// followers are all parts of the server that are made of stored objects, in the order in which they are loaded.
func (s *Server) followers() []feed.Follower {
	fs := []feed.Follower{
		{
			Name: "customresourcedefinitions", Resources: []schema.GroupResource{definitions},
			Load: func(ctx context.Context, stored *feed.Snapshot) error {
				return s.crds.Load(ctx, s.registry.Backend(), stored)
			},
			Apply: func(ctx context.Context, c *feed.Change) error { return s.crds.Apply(ctx, s.registry.Backend(), c) },
		},
		{Name: "rbac", Resources: rbac.Kinds(), Load: loadFrom(s.opts.Roles.Load), Apply: s.opts.Roles.Apply},
		{Name: "aggregation", Resources: aggregate.Kinds(), Load: loadFrom(s.others.aggregator.Load), Apply: s.others.aggregator.Apply},
		{
			Name: "reconciler", Resources: reconciler.Kinds(), Namespace: metav1.NamespaceSystem, Background: true,
			Load: loadFrom(s.reconciler.Load), Apply: s.reconciler.Apply,
		},
	}
	if routes := s.others.routes; routes != nil {
		fs = append(fs, feed.Follower{
			Name: "externalmetrics", Resources: externalmetrics.Kinds(), Load: loadFrom(routes.Load), Apply: routes.Apply,
			Unreadable: routes.SetUnreadable,
		})
	}
	if s.flow != nil {
		fs = append(fs, feed.Follower{Name: "flowcontrol", Resources: flowcontrol.Kinds(), Load: loadFrom(s.flow.Load), Apply: s.flow.Apply})
	}
	if nodes := s.opts.Nodes; nodes != nil {
		fs = append(fs, feed.Follower{
			Name: "nodes", Resources: node.Kinds(), Wanted: nodes.Wanted(), Load: loadFrom(nodes.Load), Apply: nodes.Apply,
		})
	}
	if l := s.opts.PodLabels; l != nil {
		fs = append(fs, l.Follower())
	}
	for _, p := range s.opts.Admission {
		if f, ok := p.(admit.Follower); ok {
			name := "admission-" + strings.ToLower(p.Name())
			of := feed.Follower{Name: name, Resources: f.Follows(), Load: loadFrom(f.Load), Apply: f.Apply}
			if u, ok := p.(interface{ SetUnreadable([]feed.Key) }); ok {
				of.Unreadable = u.SetUnreadable
			}
			fs = append(fs, of)
		}
	}
	return fs
}

// loadFrom is the Load of a follower that needs no more of a snapshot than its objects.
func loadFrom(load func(context.Context, feed.Lister) error) func(context.Context, *feed.Snapshot) error {
	return func(ctx context.Context, stored *feed.Snapshot) error { return load(ctx, stored) }
}

// newFeed makes the feed, which is started when all followers are there.
func (s *Server) newFeed(decorate []func(feed.Follower) feed.Follower) {
	fs := s.followers()
	for _, d := range decorate {
		for i, f := range fs {
			fs[i] = d(f)
		}
	}
	s.feed = feed.New(feed.Options{
		Source: s.opts.Store, Log: s.opts.Log, Kind: func(r schema.GroupResource) *registry.Kind { return s.registry.Kinds().Get(r) },
	}, fs...)
}

// feedChecks fail while a follower could not apply what is stored.
func (s *Server) feedChecks() []health.Check {
	var cs []health.Check
	for _, name := range s.feed.Names() {
		cs = append(cs, health.Check{
			Name: "feed/" + name, Only: []health.Root{health.Readyz},
			Run: func(context.Context) error { return s.feed.Check(name) },
		})
	}
	return cs
}
