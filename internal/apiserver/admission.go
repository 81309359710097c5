// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/resource"
)

// typed is an optional interface of field managers that know the schemas of kinds.
type typed interface {
	Types(d *resource.Descriptor) (managedfields.TypeConverter, error)
}

// joinAdmission connects the plug-ins to the server.
func (s *Server) joinAdmission(services webhook.Resolver) error {
	host := &admit.Host{
		Log: s.opts.Log, Ledger: s.opts.Ledger, Services: services, Egress: s.opts.Egress,
		Backend: func() resource.Backend { return s.registry.Backend() },
		Kind: func(r schema.GroupResource) *resource.Descriptor {
			if k := s.registry.Kinds().Get(r); k != nil {
				return k.Descriptor
			}
			return nil
		},
		Kinds: s.Kinds, Authorize: authorize.Standard(s.access.authz), Metrics: s.metrics.Registry(),
		Synced: func(ctx context.Context, r schema.GroupResource) { s.feed.Wait(ctx, r, s.opts.Store.Revision()) },
	}
	if t, ok := s.opts.Fields.(typed); ok {
		host.Types = t.Types
	}
	for _, p := range s.opts.Admission {
		if h, ok := p.(admit.Hosted); ok {
			if err := h.Join(host); err != nil {
				return fmt.Errorf("start %s: %w", p.Name(), err)
			}
		}
	}
	return nil
}

// runAdmission runs the background work of plug-ins until ctx ends.
func (s *Server) runAdmission(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range s.opts.Admission {
		if r, ok := p.(admit.Runner); ok {
			g.Go(func() error {
				if err := r.Run(ctx); err != nil {
					return fmt.Errorf("run %s: %w", p.Name(), err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}
