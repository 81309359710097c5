// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy implements the two admission plug-ins with CEL expressions: ValidatingAdmissionPolicy and
// MutatingAdmissionPolicy, as in kube-apiserver.
//
// A policy applies through its bindings. A [Validating] or [Mutating] plug-in holds each policy with its bindings
// (source.go), and compiles it when a request first matches it. The feed applies each change of either before the write
// is answered. Parameters are objects of any served kind, read when they are needed (params.go), so that there is
// nothing to wait for. Upstream's libraries evaluate the expressions; this package matches, orders, and applies the
// verdicts (validate.go, mutate.go).
//
// # Concurrency
//
// Requests read the list of policies without a lock; it is replaced as a whole.
package policy
