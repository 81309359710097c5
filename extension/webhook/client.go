// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
)

// NewAdmission returns a caller of admission webhooks. kubeconfig is a file of the credentials for hosts and services;
// empty: none.
func NewAdmission(l *extension.Ledger, r Resolver, kubeconfig string) (*Caller, error) {
	clients, err := webhook.NewClientManager(
		[]schema.GroupVersion{admissionv1beta1.SchemeGroupVersion, admissionv1.SchemeGroupVersion},
		admissionv1beta1.AddToScheme, admissionv1.AddToScheme,
	)
	if err != nil {
		return nil, fmt.Errorf("make webhook clients: %w", err)
	}
	auth, err := webhook.NewDefaultAuthenticationInfoResolver(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read credentials of webhooks: %w", err)
	}
	clients.SetAuthenticationInfoResolver(wrapping{auth, func(t http.RoundTripper) http.RoundTripper { return replay{egress.SameOrigin(t)} }})
	clients.SetServiceResolver(webhook.NewDefaultServiceResolver())
	if r != nil {
		clients.SetServiceResolver(r)
	}
	return &Caller{ledger: l, clients: clients}, nil
}

// Client is a client of one target, for repeated calls.
type Client struct {
	caller *Caller
	rest   *rest.RESTClient
	known  atomic.Pointer[address]
}

// Client makes the way to a target. Equal targets share their connections.
func (c *Caller) Client(t Target) (*Client, error) {
	client, err := c.clients.HookClient(t)
	if err != nil {
		return nil, err
	}
	return &Client{caller: c, rest: client}, nil
}

// Post sends JSON and decodes the answer. If ctx has a deadline, the target gets the remaining time. check validates the
// answer: its error counts as a failure too; nil: no check. The error is that of the call or of check alone, or wraps
// [extension.ErrOpen].
func (c *Client) Post(ctx context.Context, ref extension.Ref, p extension.Policy, body []byte, into runtime.Object,
	check func() error) error {
	var own error
	called := false
	err := c.caller.ledger.Call(ctx, ref, p, func(ctx context.Context) error {
		called = true
		if own = c.ask(ctx, body, into); own == nil && check != nil {
			own = check()
		}
		return own
	})
	if called && !errors.Is(err, extension.ErrOpen) {
		return own
	}
	return err
}
