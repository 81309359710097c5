// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package opa proves with Open Policy Agent, as people run it, that policies written in Rego decide: as an authorization webhook
// (authorization_test.go). It is a module of its own, so that the agent's dependencies do not weigh on Mortise's go.mod; both
// programs are built, and speak to each other over TLS.
//
// harness_test.go starts them: serve gives an agent with a policy, up a server with flags.
package opa
