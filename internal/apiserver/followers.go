// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/upkeep"
)

// followers are all parts of the server that are made of stored objects, in the order in which they are loaded.
func (s *Server) followers() []feed.Follower {
	fs := []feed.Follower{
		{
			Name: "customresourcedefinitions", Resources: []schema.GroupResource{definitions}, Load: s.loadDefinitions,
			Apply: func(ctx context.Context, c *feed.Change) error {
				definition, _ := c.Object.(*apiextensionsv1.CustomResourceDefinition)
				return s.crds.Committed(ctx, s.registry.Backend(), c.Name, definition)
			},
		},
		{
			Name: "rbac", Resources: rbac.Kinds(), Load: s.loadRoles,
			Apply: func(ctx context.Context, c *feed.Change) error {
				return s.opts.Roles.Committed(ctx, s.registry.Backend(), c.Resource, c.Namespace, c.Name)
			},
		},
		{
			Name: "aggregation", Resources: aggregate.Kinds(),
			Load: func(ctx context.Context, _ *feed.Snapshot) error { return s.aggregator.Load(ctx) },
			Apply: func(ctx context.Context, c *feed.Change) error {
				return s.aggregator.Committed(ctx, c.Resource, c.Namespace, c.Name, c.Object)
			},
		},
		{
			Name: "upkeep", Resources: upkeep.Kinds(),
			Load: func(context.Context, *feed.Snapshot) error { s.keeper.Missed(); return nil },
			Apply: func(_ context.Context, c *feed.Change) error {
				s.keeper.Committed(c.Resource, c.Namespace, c.Name, c.Object)
				return nil
			},
		},
	}
	if s.flow != nil {
		fs = append(fs, feed.Follower{
			Name: "flowcontrol", Resources: flowcontrol.Kinds(),
			Load: func(ctx context.Context, _ *feed.Snapshot) error { return s.loadFlow(ctx) },
			Apply: func(_ context.Context, c *feed.Change) error {
				s.flow.Committed(c.Resource, c.Name, c.Object)
				return nil
			},
		})
	}
	if nodes := s.opts.Nodes; nodes != nil {
		fs = append(fs, feed.Follower{
			Name: "nodes", Resources: node.Kinds(), Idle: nodes.Idle,
			Load: func(context.Context, *feed.Snapshot) error { return nodes.Reload() },
			Apply: func(ctx context.Context, c *feed.Change) error {
				return nodes.Committed(ctx, s.registry.Backend(), c.Resource, c.Namespace, c.Name, c.Object)
			},
		})
	}
	for _, p := range s.opts.Admission {
		f, ok := p.(admit.Follower)
		if !ok {
			continue
		}
		fs = append(fs, feed.Follower{
			Name: "admission-" + strings.ToLower(p.Name()), Resources: f.Follows(),
			Load: func(ctx context.Context, _ *feed.Snapshot) error { return f.Load(ctx, s.registry.Backend()) },
			Apply: func(ctx context.Context, c *feed.Change) error {
				return f.Committed(ctx, s.registry.Backend(), c.Resource, c.Namespace, c.Name)
			},
		})
	}
	return fs
}

// newFeed makes the feed, which is started when all followers are there.
func (s *Server) newFeed() {
	s.feed = feed.New(feed.Options{
		Source: s.opts.Store, Log: s.opts.Log, Kind: func(r schema.GroupResource) *registry.Kind { return s.registry.Kinds().Get(r) },
	}, s.followers()...)
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

// loadDefinitions serves the custom resource definitions that are stored. One that cannot be served keeps no other from it.
func (s *Server) loadDefinitions(ctx context.Context, _ *feed.Snapshot) error {
	b := s.registry.Backend()
	stored, err := b.List(ctx, definitions, "")
	if err != nil {
		return fmt.Errorf("list custom resource definitions: %w", err)
	}
	names := make(map[string]bool, len(stored))
	for _, obj := range stored {
		names[obj.GetName()] = true
		definition, _ := obj.(*apiextensionsv1.CustomResourceDefinition)
		if err := s.crds.Committed(ctx, b, obj.GetName(), definition); err != nil {
			s.opts.Log.ErrorContext(ctx, "serve a stored custom resource definition", "name", obj.GetName(), "error", err)
		}
	}
	for _, name := range s.crds.Names() {
		if !names[name] {
			if err := s.crds.Committed(ctx, b, name, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadRoles reads roles and bindings, where the server has them.
func (s *Server) loadRoles(ctx context.Context, _ *feed.Snapshot) error {
	if s.registry.Kinds().Get(rbac.Roles) == nil {
		return nil
	}
	return s.opts.Roles.Load(ctx, s.registry.Backend())
}
