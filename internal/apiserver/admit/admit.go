// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package admit decides whether a write is allowed, and may change it: the admission stage between decoding and the
// kind's strategy.
//
// A [Plugin] is one built-in admission plug-in, one package each below this one; its contract is package extension/admission. The order
// is the order of the [Chain] that internal/builtin makes, upstream's own. Mutating plug-ins all run before the strategy, validating ones
// after it. Plug-ins are called concurrently by many requests and keep no state of a request.
package admit

import (
	"context"

	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/resource"
)

// The contract of plug-ins.
type (
	// Operation is the operation of a request.
	Operation = admission.Operation
	// Attributes describe a request for plug-ins.
	Attributes = admission.Attributes
	// Plugin has a name and is a [Mutator], a [Validator], or both.
	Plugin = admission.Plugin
	// Filter is a plug-in that handles only some requests.
	Filter = admission.Filter
	// Mutator changes Attributes.Object, or refuses with an API status error.
	Mutator = admission.Mutator
	// Validator rejects a request with an API status error, or returns nil.
	Validator = admission.Validator
	// Host is the server in which a plug-in runs.
	Host = admission.Host
	// Configured is a plug-in that an AdmissionConfiguration can configure.
	Configured = admission.Configured
	// Hosted is a plug-in that needs its server.
	Hosted = admission.Hosted
	// Authorizer is a function that implements the authorizer interface of the Kubernetes libraries.
	Authorizer = admission.Authorizer
	// Authorizing is embedded by plug-ins that check a user's permissions.
	Authorizing = admission.Authorizing
)

// The operations, as admission.k8s.io names them.
const (
	Create  = admission.Create
	Update  = admission.Update
	Delete  = admission.Delete
	Connect = admission.Connect
)

// Chain is the plug-ins in their order.
type Chain []Plugin

// handles reports whether a plug-in has something to say on a request.
func handles(p Plugin, a *Attributes) bool {
	f, ok := p.(Filter)
	return !ok || f.Handles(a)
}

// Mutate calls every mutator that handles the request in order, and all of them again if one requests it. It stops at the first error.
func (c Chain) Mutate(ctx context.Context, b resource.Backend, a *Attributes) error {
	for {
		for _, p := range c {
			if m, ok := p.(Mutator); ok && handles(p, a) {
				if err := m.Mutate(ctx, b, a); err != nil {
					return err
				}
			}
		}
		if !a.Again() {
			return nil
		}
	}
}

// Validate calls every validator that handles the request in order. It stops at the first error.
func (c Chain) Validate(ctx context.Context, b resource.Backend, a *Attributes) error {
	for _, p := range c {
		if v, ok := p.(Validator); ok && handles(p, a) {
			if err := v.Validate(ctx, b, a); err != nil {
				return err
			}
		}
	}
	return nil
}
