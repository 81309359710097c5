// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhook calls extensions that are HTTPS servers: one POST, one JSON object in, another out.
//
// A [Caller] keeps a client for each [Target] (its address, CA and credentials), as kube-apiserver does: it calls a service
// at one of its ready endpoints under the name NAME.NAMESPACE.svc, and a URL as it is; it verifies the certificate by the
// target's CA bundle, or the machine's roots if there is none. It does not follow redirects to another server. Every call
// goes through the extension ledger.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package webhook

import (
	"context"
	"fmt"
	"net/url"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
)

// Target is the address of a webhook and the CA that it must have.
type Target = webhook.ClientConfig

// Service is a target inside the cluster.
type Service = webhook.ClientConfigService

// Resolver finds the address of a service's port: https://host:port.
type Resolver interface {
	ResolveEndpoint(namespace, name string, port int32) (*url.URL, error)
}

// Caller calls webhooks. It is safe for concurrent use.
type Caller struct {
	ledger  *extension.Ledger
	clients webhook.ClientManager
}

// New returns a caller that books its calls in l. A nil r knows no services.
func New(l *extension.Ledger, r Resolver) (*Caller, error) {
	clients, err := webhook.NewClientManager(
		[]schema.GroupVersion{apiextensionsv1.SchemeGroupVersion, apiextensionsv1beta1.SchemeGroupVersion},
		apiextensionsv1.AddToScheme, apiextensionsv1beta1.AddToScheme,
	)
	if err != nil {
		return nil, fmt.Errorf("make webhook clients: %w", err)
	}
	auth, err := webhook.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		return nil, fmt.Errorf("make webhook clients: %w", err)
	}
	clients.SetAuthenticationInfoResolver(wrapping{auth, egress.SameOrigin})
	clients.SetServiceResolver(webhook.NewDefaultServiceResolver())
	if r != nil {
		clients.SetServiceResolver(r)
	}
	return &Caller{ledger: l, clients: clients}, nil
}

// Call posts request to the target and decodes the answer into the object into. The error is that of the call alone, since
// each point has its own words for which webhook failed; while the breaker is open it wraps [extension.ErrOpen].
func (c *Caller) Call(ctx context.Context, ref extension.Ref, p extension.Policy, t Target, request, into runtime.Object) error {
	var own error
	err := c.ledger.Call(ctx, ref, p, func(ctx context.Context) error {
		client, err := c.clients.HookClient(t)
		if err == nil {
			err = client.Post().Body(request).Do(ctx).Into(into)
		}
		own = err
		return err
	})
	if own != nil {
		return own
	}
	return err
}

// Dial has services and URLs called by ways of their own; nil: the ordinary one. It comes before the first call.
func (c *Caller) Dial(service, url egress.Dial) {
	c.clients.SetAuthenticationInfoResolverWrapper(func(next webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{
			ClientConfigForFunc: func(host string) (*rest.Config, error) { return by(url)(next.ClientConfigFor(host)) },
			ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
				return by(service)(next.ClientConfigForService(name, namespace, port))
			},
		}
	})
}

func by(dial egress.Dial) func(*rest.Config, error) (*rest.Config, error) {
	return func(c *rest.Config, err error) (*rest.Config, error) {
		if err == nil && dial != nil {
			c.Dial = dial
		}
		return c, err
	}
}

// Register lists a webhook in the ledger, called or not; see [extension.Ledger.Register].
func (c *Caller) Register(ref extension.Ref, where string) { c.ledger.Register(ref, where) }

// Unregister strikes it off.
func (c *Caller) Unregister(ref extension.Ref) { c.ledger.Unregister(ref) }
