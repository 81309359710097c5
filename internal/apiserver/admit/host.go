// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// Host is the server that a plug-in works in. Its functions answer for the present moment.
type Host struct {
	Log      *slog.Logger
	Ledger   *extension.Ledger
	Services webhook.Resolver
	Egress   *egress.Selector
	Backend  func() resource.Backend
	// Kind is the descriptor that serves a resource, nil if none does; Kinds are all.
	Kind  func(schema.GroupResource) *resource.Descriptor
	Kinds func() []*resource.Descriptor
	// Authorize decides as the pipeline does.
	Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Types returns which lists of a kind are sets or maps, and which objects are atomic. Nil: this is unknown.
	Types func(d *resource.Descriptor) (managedfields.TypeConverter, error)
	// Synced returns when all that follows a resource has applied what is stored of it now, or ctx ends. Nil: it always has.
	Synced func(ctx context.Context, r schema.GroupResource)
	// Metrics takes the plug-in's own.
	Metrics prometheus.Registerer
}

// Configured is a plug-in that an AdmissionConfiguration may say something for, under its name. Configure is called once, before
// Join: config is nil where nothing is said. Its error ends the start.
type Configured interface {
	Plugin
	Configure(config io.Reader) error
}

// Hosted is a plug-in that wants to know its server. Join is called once, before the first request.
type Hosted interface {
	Plugin
	Join(h *Host) error
}

// Follower is a plug-in that is configured by objects: the server's feed has it apply each change of them before the write is
// answered, so that the next request meets it. The feed calls Load and Apply one at a time.
type Follower interface {
	Plugin
	Follows() []schema.GroupResource
	// Load replaces what the plug-in knows with what is stored. It is called after Join, before the first request, and again when
	// changes were missed.
	Load(ctx context.Context, stored feed.Lister) error
	// Apply applies a change of an object of a resource that the plug-in follows.
	Apply(ctx context.Context, c *feed.Change) error
}

// Runner is a plug-in that does something between requests. Run blocks until ctx ends.
type Runner interface {
	Plugin
	Run(ctx context.Context) error
}

// Authorizer is a function in the form that libraries of the field want.
type Authorizer func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// Authorize calls the function.
func (f Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return f(ctx, a)
}

// Authorizing is embedded by plug-ins that ask whether a user may do something: it is their [Hosted] part.
type Authorizing struct{ Authorize Authorizer }

// Join implements [Hosted].
func (p *Authorizing) Join(h *Host) error {
	p.Authorize = h.Authorize
	return nil
}
