// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/resource"
)

// Host is the server in which a plug-in runs. Its functions return the current state.
type Host struct {
	Log      *slog.Logger
	Ledger   *extension.Ledger
	Services webhook.Resolver
	Egress   *egress.Selector
	Backend  func() resource.Backend
	// Kind returns the descriptor that serves a resource, or nil; Kinds returns all descriptors.
	Kind  func(schema.GroupResource) *resource.Descriptor
	Kinds func() []*resource.Descriptor
	// Authorize makes the same decisions as the request pipeline.
	Authorize func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)
	// Types returns which lists of a kind are sets or maps, and which objects are atomic. Nil means that this is
	// unknown.
	Types func(d *resource.Descriptor) (managedfields.TypeConverter, error)
	// Synced blocks until all followers of a resource have applied what is stored now, or until ctx ends. Nil means
	// that they always have.
	Synced func(ctx context.Context, r schema.GroupResource)
	// Metrics registers the plug-in's own metrics.
	Metrics prometheus.Registerer
}

// Configured is a plug-in that an AdmissionConfiguration can configure, under the plug-in's name. Configure is called
// once, before Join, with a nil config if the AdmissionConfiguration has none. An error stops the start.
type Configured interface {
	Plugin
	Configure(config io.Reader) error
}

// Hosted is a plug-in that needs its server. Join is called once, before the first request.
type Hosted interface {
	Plugin
	Join(h *Host) error
}

// Authorizer is a function that implements the authorizer interface of the Kubernetes libraries.
type Authorizer func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error)

// Authorize calls the function.
func (f Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	return f(ctx, a)
}

// MayFor reports whether a user may do verb (approve, sign, attest) for a signer of certificates: for it by name, or for
// all signers of its domain.
func (f Authorizer) MayFor(ctx context.Context, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		d, _, err := f(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name, APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && d == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// Authorizing is embedded by plug-ins that check a user's permissions. It implements [Hosted].
type Authorizing struct{ Authorize Authorizer }

// Join implements [Hosted].
func (p *Authorizing) Join(h *Host) error {
	p.Authorize = h.Authorize
	return nil
}
