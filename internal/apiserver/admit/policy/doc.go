// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy is the two admission plug-ins that decide by CEL expressions: ValidatingAdmissionPolicy and
// MutatingAdmissionPolicy, as kube-apiserver has them.
//
// A policy applies through its bindings. A [Validating] or [Mutating] plug-in holds each policy with its bindings
// (source.go), compiled when a request first matches it; the feed hands it each change of either before the write is
// answered. Parameters are objects of any served kind, read when they are needed (params.go), so that there is nothing to
// wait for. The libraries of the expressions decide; this package matches, orders, and applies the verdicts (validate.go,
// mutate.go).
//
// # Concurrency
//
// Requests read the list of policies without a lock; it is replaced as a whole.
package policy
