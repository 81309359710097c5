// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authenticator is the contract of authenticators in Go. It is that of the Kubernetes libraries, so that their authenticators and
// those written for them can be used. embed.Extensions takes authenticators: they come after client certificates and tokens, and before
// anonymous access.
//
// # Stability
//
// The interfaces are those of the Kubernetes release that Mortise implements. What this package exports only grows: a committed list of it
// is compared in a test.
package authenticator

import "k8s.io/apiserver/pkg/authentication/authenticator"

// Authenticator finds the user of a request by a credential of its kind. It returns false if the request has no such credential, and an
// error if the credential is invalid: the request is then refused. Many requests call it at the same time.
type Authenticator = authenticator.Request

// Response is the user that an Authenticator has found.
type Response = authenticator.Response

// Func adapts a function to an Authenticator.
type Func = authenticator.RequestFunc
