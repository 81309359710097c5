// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authorizer is the contract of authorizers in Go. It is that of the Kubernetes libraries. embed.Extensions takes authorizers: they
// come after the group system:masters, which may do everything, and before those that the settings name, such as roles.
//
// An authorizer allows, denies, or has no opinion; the first that allows or denies decides. Many requests call it at the same time, also
// each with several questions, such as whether the user may impersonate another. So it must be quick, and cache what it fetches.
//
// # Stability
//
// The interfaces are those of the Kubernetes release that Mortise implements. What this package exports only grows: a committed list of it
// is compared in a test.
package authorizer

import (
	"context"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorizer decides about requests. The user sees the reason if no authorizer allows the request.
type Authorizer = authorizer.UnconditionalAuthorizer

// Attributes describe a request.
type Attributes = authorizer.Attributes

// Decision is the result of an authorizer.
type Decision = authorizer.Decision

// The decisions. Unless a request is allowed in the end, it is forbidden.
const (
	NoOpinion = authorizer.DecisionNoOpinion
	Deny      = authorizer.DecisionDeny
	Allow     = authorizer.DecisionAllow
)

// Func adapts a function to an Authorizer.
type Func func(ctx context.Context, a Attributes) (Decision, string, error)

// Authorize implements [Authorizer].
func (f Func) Authorize(ctx context.Context, a Attributes) (Decision, string, error) {
	return f(ctx, a)
}
